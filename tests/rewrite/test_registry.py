"""Which rules are in force: registered, in a scope, switched off; and when that is looked at."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass import errors
from fusepass.default_rules import default_rules
from fusepass.rewrite import registry
from fusepass.rewrite.option_scope import resolve_checked

X = torch.randn(3, 4)


def rule(name: str = "tried", place: str = "before") -> fusepass.Rule:
    return fusepass.Rule(name, lambda x: x * 2, lambda x: x + x, (X,), place=place)  # type: ignore[arg-type]


def program(x: Tensor) -> Tensor:
    return (x * 2).cos()


def compiled(**options: Any) -> Any:
    return torch.compile(program, backend="fusepass", options={"codegen": "eager"} | options)


def outcomes(call: Any, name: str = "tried") -> list[str]:
    found = fusepass.last_report(call).decisions
    return [d.outcome.value for d in found if d.rule == name]


def names() -> list[str]:
    return [r.name for r in registry.active_rules() if r not in default_rules()]


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    left = names()
    fusepass.reset()
    for name in left:
        fusepass.unregister(name)
    assert left == []


@pytest.fixture
def registered() -> Iterator[fusepass.Rule]:
    """A rule in force for the test."""
    made = fusepass.register(rule())
    yield made
    fusepass.reset()
    if "tried" in names():
        fusepass.unregister(made)


class TestRegister:
    """``register`` and ``unregister``."""

    def test_acts_until_it_is_taken_out(self) -> None:
        mine = rule()
        assert fusepass.register(mine) is mine
        inside = compiled()
        inside(X)
        fusepass.reset()
        fusepass.unregister(mine)
        outside = compiled()
        outside(X)
        assert outcomes(outside) == []

    def test_acts(self, registered: fusepass.Rule) -> None:
        call = compiled()
        torch.testing.assert_close(call(X), program(X))
        assert outcomes(call) == ["applied"]

    def test_acts_in_explain(self, registered: fusepass.Rule) -> None:
        found = fusepass.explain(program, X).decisions
        assert [d.outcome for d in found if d.rule == "tried"] == ["applied"]

    def test_out_by_name(self, registered: fusepass.Rule) -> None:
        fusepass.unregister("tried")
        assert names() == []
        fusepass.register(registered)  # and in again

    def test_same_name_twice(self, registered: fusepass.Rule) -> None:
        other = rule()
        with pytest.raises(errors.RuleError, match="another rule in force has this name") as caught:
            fusepass.register(other)
        assert other.location in str(caught.value)
        assert names() == ["tried"]

    def test_names_of_built_in_rules(self) -> None:
        for name in ("branch", "joined_reductions", default_rules()[0].name):
            with pytest.raises(errors.RuleError, match="has this name"):
                fusepass.register(rule(name))

    def test_a_rule_made_again_is_told_how_to_take_the_first_out(
        self, registered: fusepass.Rule
    ) -> None:
        """As where a notebook's cell is run again, or a module is loaded again."""
        with pytest.raises(errors.RuleError, match=r"call fusepass\.unregister\('tried'\) first"):
            fusepass.register(rule())
        with pytest.raises(errors.RuleError, match="has this name; give this one another"):
            fusepass.register(rule(default_rules()[0].name))

    def test_out_what_was_never_in(self, registered: fusepass.Rule) -> None:
        with pytest.raises(errors.RuleError, match=r"no such rule is registered.*: tried"):
            fusepass.unregister("other")
        with pytest.raises(errors.RuleError, match="no such rule"):
            fusepass.unregister(default_rules()[0])

    def test_malformed_rule_leaves_nothing_behind(self) -> None:
        with pytest.raises(errors.RuleError):
            fusepass.register(fusepass.Rule("tried", lambda x: x, lambda x: x, (X,)))
        assert names() == []
        fusepass.register(rule())
        fusepass.unregister("tried")

    def test_order_is_that_of_registration_behind_the_built_in_ones(self) -> None:
        made = [fusepass.register(rule(f"rule_{n}")) for n in (2, 0, 1)]
        assert registry.active_rules() == (*default_rules(), *made)
        assert registry.active_rules("after") == default_rules()
        for one in made:
            fusepass.unregister(one)


class TestScope:
    """``with fusepass.rules(...)``."""

    def test_acts_on_what_is_compiled_inside(self) -> None:
        """It is looked at when something is compiled, not when torch.compile is called."""
        call = compiled()
        with fusepass.rules(rule()):
            call(X)
        assert outcomes(call) == ["applied"]
        fusepass.reset()
        with fusepass.rules(rule()):
            call = compiled()
        call(X)
        assert outcomes(call) == []

    def test_scopes_nest(self) -> None:
        with fusepass.rules(rule("outer")):
            with fusepass.rules(rule("inner"), rule("inner_too")):
                assert names() == ["outer", "inner", "inner_too"]
            assert names() == ["outer"]
        assert names() == []

    def test_scope_is_left_after_an_error(self) -> None:
        with pytest.raises(ZeroDivisionError), fusepass.rules(rule()):
            raise ZeroDivisionError
        assert names() == []

    def test_same_name_twice(self, registered: fusepass.Rule) -> None:
        for given in ((rule("a"), rule("a")), (rule("tried"),)):
            with pytest.raises(errors.RuleError, match="has this name"), fusepass.rules(*given):
                pytest.fail("entered")
        with fusepass.rules(rule("a")):
            with pytest.raises(errors.RuleError, match="has this name"), fusepass.rules(rule("a")):
                pytest.fail("entered")
            with pytest.raises(errors.RuleError, match="has this name"):
                fusepass.register(rule("a"))

    def test_malformed_rule_puts_none_in_force(self) -> None:
        wrong = fusepass.Rule("wrong", lambda x: x, lambda x: x, (X,))
        with pytest.raises(errors.RuleError), fusepass.rules(rule(), wrong):
            pytest.fail("entered")
        assert names() == []

    def test_empty_scope(self) -> None:
        with fusepass.rules():
            assert names() == []

    def test_backward_that_is_compiled_outside(self) -> None:
        """It belongs to the forward, whose scope it was."""
        call = torch.compile(
            lambda x: (x * 2).cos(), backend="fusepass", options={"codegen": "eager-decomposed"}
        )
        x = torch.randn(3, 4, requires_grad=True)
        with fusepass.rules(rule(place="after")):
            y = call(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, -2 * torch.sin(2 * x.detach()))
        assert outcomes(call).count("applied") == 2


class TestThreads:
    """Registered rules are the process's, scopes their thread's."""

    def test_scope_belongs_to_its_thread(self) -> None:
        seen: list[list[str]] = []
        with fusepass.rules(rule()):
            self.run_all([lambda: seen.append(names())])
        assert seen == [[]]

    def test_registered_rules_are_seen_by_all(self, registered: fusepass.Rule) -> None:
        seen: list[list[str]] = []
        self.run_all([lambda: seen.append(names())])
        assert seen == [["tried"]]

    def test_one_name_is_given_once(self) -> None:
        """However many register at the same time."""
        start = threading.Barrier(4)
        done: list[str] = []

        def register() -> None:
            mine = rule()
            start.wait(10)
            try:
                fusepass.register(mine)
                done.append("registered")
            except errors.RuleError:
                done.append("refused")

        self.run_all([register] * 4)
        fusepass.unregister("tried")
        assert sorted(done) == ["refused"] * 3 + ["registered"]

    @staticmethod
    def run_all(calls: list[Any]) -> None:
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)


class TestOptions:
    """``options={"rules": {name: False}}``."""

    def test_off(self, registered: fusepass.Rule) -> None:
        call = compiled(rules={"tried": False})
        torch.testing.assert_close(call(X), program(X))
        (found,) = (d for d in fusepass.last_report(call).decisions if d.rule == "tried")
        assert (found.outcome, found.reason_code) == ("rejected", "rule_off")
        assert outcomes_of_on() == ["applied"]

    def test_off_in_a_scope_and_on_again(self, registered: fusepass.Rule) -> None:
        with fusepass.options(rules={"tried": False}):
            off, on = compiled(), compiled(rules={"tried": True})
            off(X)
            assert outcomes(off) == ["rejected"]
            fusepass.reset()
            on(X)
            assert outcomes(on) == ["applied"]

    def test_off_after_autograd(self) -> None:
        with fusepass.rules(rule(place="after")):
            call = compiled(codegen="eager-decomposed", rules={"tried": False})
            call(X)
        assert outcomes(call) == ["rejected"]

    def test_unknown_name_lists_the_known_ones(self, registered: fusepass.Rule) -> None:
        with pytest.raises(errors.UnknownOption, match="Did you mean 'tried'") as caught:
            compiled(rules={"tryed": False})(X)
        for name in ("tried", "branch", "joined_reductions"):
            assert name in str(caught.value)

    def test_name_is_known_while_the_rule_is_in_force(self) -> None:
        with fusepass.rules(rule()):
            assert resolve_checked(options={"rules": {"tried": False}}).rules == {"tried": False}
        with pytest.raises(errors.UnknownOption, match="tried"):
            resolve_checked(options={"rules": {"tried": False}})


def outcomes_of_on() -> list[str]:
    """What the rule does where it is not switched off."""
    fusepass.reset()
    call = compiled()
    call(X)
    return outcomes(call)


class TestLate:
    """What is compiled keeps its rules: said, where it matters."""

    @pytest.fixture
    def earlier(self) -> Any:
        call = torch.compile(
            program, backend="fusepass", options={"codegen": "eager"}, dynamic=False
        )
        call(X)
        return call

    def test_register_and_unregister_warn(self, earlier: Any) -> None:
        with pytest.warns(errors.RulesChanged, match="reset") as caught:
            fusepass.register(rule())
        assert [w.filename for w in caught] == [__file__]
        with pytest.warns(errors.RulesChanged) as caught:
            fusepass.unregister("tried")
        assert [w.filename for w in caught] == [__file__]

    def test_scope_does_not(self, earlier: Any) -> None:
        """It is about what is compiled inside."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with fusepass.rules(rule()):
                pass
        assert not caught

    def test_after_a_reset_nobody_is_warned(self, earlier: Any) -> None:
        fusepass.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with fusepass.rules(rule()):
                earlier(X)
        assert outcomes(earlier) == ["applied"]

    def test_compiled_callable_keeps_its_rules(self, earlier: Any) -> None:
        with fusepass.rules(rule()):
            earlier(X)
        assert outcomes(earlier) == []

    def test_rules_are_read_when_it_is_compiled_again(self, earlier: Any) -> None:
        with fusepass.rules(rule()):
            earlier(torch.randn(5, 4))  # another shape
        assert outcomes(earlier) == ["applied"]
        earlier(torch.randn(6, 4))
        assert outcomes(earlier) == ["applied"]
