"""``with fusepass.options(...)``: who wins, how far a scope reaches, and what it warns about."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
import fusepass.testing
from fusepass import errors
from fusepass.options import Options, resolve
from fusepass.report import warn_once


def branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


class Double(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def treatment(compiled: object) -> str:
    (decision,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == "branch")
    return decision.treatment


def test_inner_scope_wins_and_leaves_nothing_behind() -> None:
    with fusepass.options(treatment="keep", verify=False) as outer:
        assert (outer.treatment, outer.verify) == ("keep", False)
        with fusepass.options(treatment="where") as inner:
            assert (inner.treatment, inner.verify) == ("where", False)
        assert resolve() == outer
    assert resolve() == Options()


def test_scope_is_left_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), fusepass.options(treatment="keep"):
        raise ZeroDivisionError
    assert resolve().treatment == "auto"


def test_what_torch_compile_was_given_wins_over_scopes() -> None:
    with fusepass.options(treatment="keep", mode="max-autotune"):
        assert resolve(None, {"treatment": "cond"}).treatment == "cond"
        assert resolve("reduce-overhead").mode == "reduce-overhead"
        assert resolve(None, {"mode": "reduce-overhead"}).mode == "reduce-overhead"
        assert resolve(None, {"verify": False}).mode == "max-autotune"


def test_rules_and_inductor_keys_are_merged_one_by_one() -> None:
    with (
        fusepass.options(rules={"branch": False}, **{"inductor.max_fusion_size": 8}),
        fusepass.options(rules={"joined_reductions": False}),
    ):
        given = {"rules": {"branch": True}, "inductor.realize_reads_threshold": 2}
        merged = resolve(None, given)
    assert merged.rules == {"branch": True, "joined_reductions": False}
    assert merged.inductor == {"max_fusion_size": 8, "realize_reads_threshold": 2}


@pytest.mark.parametrize("wrong", [{"treatmnt": 1}, {"verify": 1}, {"mode": "fast"}])
def test_scope_checks_on_entry(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.FusepassError), fusepass.options(**wrong):
        pytest.fail("entered")
    assert resolve() == Options()


@pytest.mark.parametrize("wrong", [{"verify": False}, None, "verify"])
def test_a_scope_takes_keywords_only(wrong: object) -> None:
    with pytest.raises(errors.ArgumentType, match=r"fusepass\.options"), fusepass.options(wrong):
        pytest.fail("entered")
    assert resolve() == Options()


def test_scope_acts_on_what_is_compiled_inside() -> None:
    """It is read at the first call, not at torch.compile."""
    inside = torch.compile(branch, backend="fusepass", options={"codegen": "eager"})
    with fusepass.options(treatment="keep"):
        inside(torch.ones(2))
    assert treatment(inside) == "keep"
    fusepass.reset()
    with fusepass.options(treatment="keep"):
        outside = torch.compile(branch, backend="fusepass", options={"codegen": "eager"})
    outside(torch.ones(2))
    assert treatment(outside) == "where"


def test_scope_without_import_of_anything_else() -> None:
    with fusepass.options(codegen="eager", treatment="cond"):
        compiled = torch.compile(branch, backend="fusepass")
        compiled(torch.ones(2))
    assert treatment(compiled) == "cond"


def test_scope_belongs_to_its_thread() -> None:
    seen: list[str] = []
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with fusepass.options(treatment="where"):
            inside.set()
            done.wait(10)
            seen.append(resolve().treatment)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    assert resolve().treatment == "auto"
    with fusepass.options(treatment="keep"):
        done.set()
        thread.join()
        assert resolve().treatment == "keep"
    assert seen == ["where"]


def test_new_thread_starts_with_the_defaults() -> None:
    seen: list[str] = []
    with fusepass.options(treatment="keep"):
        thread = threading.Thread(target=lambda: seen.append(resolve().treatment))
        thread.start()
        thread.join()
    assert seen == ["auto"]


class TestWarning:
    """Callables compiled earlier keep their options: say so, but only where it matters."""

    @pytest.fixture
    def compiled(self) -> object:
        program = torch.compile(branch, backend="fusepass", options={"codegen": "eager"})
        program(torch.ones(2))
        return program

    def test_changed_options_warn(self, compiled: object) -> None:
        with pytest.warns(errors.OptionsChanged, match="reset") as caught:
            with fusepass.options(treatment="keep"):
                pass
        assert caught[0].filename == __file__

    def test_same_options_do_not(self, compiled: object) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with fusepass.options(treatment="auto"):
                pass
        assert not caught

    def entered(self, count: int = 1, **given: Any) -> int:
        """How often entering a scope warns, whatever was shown before."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(count):
                with fusepass.options(**(given or {"treatment": "keep"})):
                    pass
        return sum(w.category is errors.OptionsChanged for w in caught)

    @pytest.mark.parametrize(
        "reset",
        [fusepass.reset, torch._dynamo.reset, torch.compiler.reset],
        ids=["fusepass", "dynamo", "compiler"],
    )
    def test_after_a_reset_nothing_is_compiled(
        self, compiled: Any, reset: Callable[[], None]
    ) -> None:
        assert self.entered() == 1
        reset()
        assert self.entered() == 0
        compiled(torch.ones(2))
        assert self.entered() == 1

    def test_what_is_compiled_to_look_at_it_does_not(self) -> None:
        rule = fusepass.Rule(
            "twice",
            lambda x: torch.relu(x) * 2.0,
            lambda x: torch.relu(x) + torch.relu(x),
            (torch.randn(3),),
        )
        fusepass.explain(branch, torch.ones(2))
        assert self.entered() == 0
        fusepass.testing.check_rule(rule)
        assert self.entered() == 0
        fusepass.testing.assert_untouched(branch, torch.ones(2))
        assert self.entered() == 0
        fusepass.syncs(branch, torch.ones(2))
        assert self.entered() == 0

    def test_nor_does_it_hide_what_the_user_compiled(self, compiled: Any) -> None:
        fusepass.explain(compiled, torch.ones(2))
        assert self.entered() == 1

    def test_options_of_the_callable_itself_win(self) -> None:
        given = {"codegen": "eager", "treatment": "where"}
        torch.compile(branch, backend="fusepass", options=given)(torch.ones(2))
        assert self.entered() == 0
        assert self.entered(verify=False) == 1

    def test_compiled_in_such_a_scope(self) -> None:
        with fusepass.options(treatment="keep"):
            torch.compile(branch, backend="fusepass", options={"codegen": "eager"})(torch.ones(2))
        assert self.entered() == 0
        assert self.entered(treatment="where") == 1

    def test_uncalled_callables_do_not_warn(self) -> None:
        torch.compile(branch, backend="fusepass")
        assert self.entered() == 0

    def test_a_module(self) -> None:
        module = Double()
        module.compile(backend="fusepass", options={"codegen": "eager"})
        module(torch.ones(2))
        assert self.entered() == 1

    @pytest.mark.parametrize(
        ("action", "times"),
        [("default", 2), ("module", 1), ("once", 1), ("always", 6), ("ignore", 0)],
    )
    def test_filters_say_how_often(self, compiled: object, action: Any, times: int) -> None:
        """Torch changes the filters in each compile, and Python forgets what it has shown."""
        warn_once.forget()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter(action, errors.OptionsChanged)
            for turn in range(3):
                with fusepass.options(treatment="keep"):
                    torch.compile(lambda x, n=turn: x - n, backend="eager")(torch.ones(2))
                with fusepass.options(treatment="keep"):
                    pass
        assert len(caught) == times

    def test_an_error_is_raised_each_time(self, compiled: object) -> None:
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("error", errors.OptionsChanged)
                with pytest.raises(errors.OptionsChanged), fusepass.options(treatment="keep"):
                    pass

    def test_scopes_do_not_warn_before_a_compile_or_after_reset(self) -> None:
        with fusepass.options(treatment="keep"):
            pass
        program = torch.compile(branch, backend="fusepass", options={"codegen": "eager"})
        program(torch.ones(2))
        fusepass.reset()
        with fusepass.options(treatment="keep"):
            program(torch.ones(2))
        assert treatment(program) == "keep"
