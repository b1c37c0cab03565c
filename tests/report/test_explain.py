"""``fusepass.explain``: of whatever was compiled, as it was compiled, and as often as one likes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.errors import NotAProgram
from fusepass.report import log
from fusepass.torch_private.inductor import compile as torch_inductor

EAGER = {"codegen": "eager"}


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """What is explained without options of its own runs op by op."""
    with fusepass.options(codegen="eager"):
        yield


def branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def breaks(x: Tensor) -> Tensor:
    factor = x * 1
    if x.sum() > 0:
        factor = x
    return x * factor if factor is x else x + factor  # a question that no tensor answers


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        y = self.layer(x) * scale
        return y * 2 if y.sum() > 0 else y - 1


def treatments(report: fusepass.Report) -> list[str]:
    return [d.treatment for d in report.decisions if d.rule == "branch"]


def handed(report: fusepass.Report) -> str:
    (decision,) = (d for d in report.decisions if d.station == "hand_off")
    return decision.reason


class TestWhat:
    """The kinds of things one can hand in."""

    def test_function(self) -> None:
        report = fusepass.explain(branch, torch.ones(2))
        assert treatments(report) == ["where"]
        assert (report.regions_per_call, report.graph_breaks) == (1, ())

    def test_lambda_method_and_partial(self) -> None:
        import functools

        net = Net()
        for callable_ in (lambda x: branch(x) + 1, net.forward, functools.partial(branch)):
            assert treatments(fusepass.explain(callable_, torch.ones(4))) == ["where"]

    def test_module_with_keywords(self) -> None:
        report = fusepass.explain(Net(), torch.ones(4), scale=2.0)
        assert treatments(report) == ["where"]

    def test_compiled_function_with_its_options(self) -> None:
        compiled = torch.compile(branch, backend="fusepass", options={"treatment": "keep", **EAGER})
        assert treatments(fusepass.explain(compiled, torch.ones(2))) == ["keep"]
        compiled(torch.ones(2))
        assert treatments(fusepass.explain(compiled, torch.ones(2))) == ["keep"]
        assert treatments(fusepass.explain(branch, torch.ones(2))) == ["where"]

    def test_compiled_module_with_its_mode(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = torch.compile(Net(), backend="fusepass", mode="max-autotune-no-cudagraphs")
        seen: list[Any] = []

        def inductor(gm: Any, inputs: Any, patches: dict[str, Any], name: Any) -> Any:
            seen.append(patches)
            return gm.forward

        monkeypatch.setattr(torch_inductor, "compile_with_inductor", inductor)
        with fusepass.options(codegen="inductor"):
            report = fusepass.explain(compiled, torch.ones(4))
        assert "max-autotune-no-cudagraphs" in handed(report)
        assert seen[0]["coordinate_descent_tuning"] is True

    def test_module_compiled_in_place(self) -> None:
        net = Net()
        net.compile(backend="fusepass", options={"treatment": "cond", **EAGER})
        inner = net._compiled_call_impl
        assert treatments(fusepass.explain(net, torch.ones(4))) == ["cond"]
        assert net._compiled_call_impl is inner
        net(torch.ones(4))
        assert treatments(fusepass.last_report(net)) == ["cond"]

    @pytest.mark.parametrize("dynamic", [None, True, False])
    def test_dynamic_as_compiled(self, dynamic: bool | None) -> None:
        compiled = torch.compile(lambda x: x * x.shape[0], backend="fusepass", dynamic=dynamic)
        report = fusepass.explain(compiled, torch.ones(5))
        assert report.operations == (1,)
        assert _symbolic_inputs(compiled) == (dynamic is True)

    def test_scope_counts_for_what_has_no_options(self) -> None:
        with fusepass.options(treatment="cond"):
            assert treatments(fusepass.explain(branch, torch.ones(2))) == ["cond"]

    def test_function_that_inductor_has_compiled(self) -> None:
        compiled = torch.compile(branch, backend="eager")
        compiled(torch.ones(2))
        assert treatments(fusepass.explain(compiled, torch.ones(2))) == ["where"]

    def test_frame_that_torch_has_given_up_on(self) -> None:
        """A break inside a loop: Dynamo skips the frame, for every backend, until a reset."""

        def loop(x: Tensor) -> Tensor:
            for _ in range(3):
                x = branch(x)
                x = x * 2 if x.sum() > 0 else x - 1
            return x

        torch.compile(loop, backend="eager")(torch.ones(2))
        assert fusepass.explain(loop, torch.ones(2)).regions_per_call == 1

    def test_what_the_program_raises_is_raised(self) -> None:
        def fails(x: Tensor) -> Tensor:
            x.add_(1)
            raise KeyError("theirs")

        x = torch.zeros(2)
        with pytest.raises(KeyError, match="theirs"):
            fusepass.explain(fails, x)
        assert x.tolist() == [0, 0]


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def _symbolic_inputs(compiled: Any) -> bool:
    """Whether another length runs without a recompile."""
    compiled(torch.ones(5))
    with torch._dynamo.config.patch(error_on_recompile=True):
        try:
            compiled(torch.ones(7))
        except torch._dynamo.exc.RecompileError:
            return False
    return True


class TestRegions:
    """Counted in the call that is explained, not in those that follow."""

    def test_one_graph_entered_many_times(self) -> None:
        def layers(x: Tensor) -> Tensor:
            for _ in range(3):
                x = breaks(x)
                torch._dynamo.graph_break()
            return x

        report = fusepass.explain(layers, torch.ones(2))
        # Per layer one graph up to the branch and one after it; torch does not trace the loop.
        assert report.regions_per_call == 6
        assert len(report.operations) == 2

    def test_same_again_after_other_calls(self) -> None:
        compiled = torch.compile(breaks, backend="fusepass", options=EAGER)
        first = fusepass.explain(compiled, torch.ones(2)).to_dict()
        for _ in range(3):
            compiled(torch.ones(2))
        assert fusepass.explain(compiled, torch.ones(2)).to_dict() == first
        assert first["regions_per_call"] == 2


class TestNoTrace:
    """Explaining twenty times changes nothing for what the user compiled."""

    @pytest.mark.parametrize("function", [branch, breaks])
    def test_compiled_stays_compiled(self, function: Callable[[Tensor], Tensor]) -> None:
        compiled = torch.compile(function, backend="fusepass", options=EAGER)
        x = torch.ones(2)
        compiled(x)
        reports = [fusepass.explain(compiled, x).to_dict() for _ in range(20)]
        assert all(report == reports[0] for report in reports)
        with torch._dynamo.config.patch(error_on_recompile=True):
            compiled(x)

    def test_compiled_with_another_backend_stays_compiled(self) -> None:
        compiled = torch.compile(branch, backend="eager")
        compiled(torch.ones(2))
        fusepass.explain(branch, torch.ones(2))
        with torch._dynamo.config.patch(error_on_recompile=True):
            assert torch.equal(compiled(torch.ones(2)), branch(torch.ones(2)))

    @pytest.mark.parametrize("before", [True, False])
    def test_recompile_limit_is_left(self, before: bool) -> None:
        compiled = torch.compile(branch, backend="fusepass", options=EAGER, dynamic=False)
        if before:
            compiled(torch.ones(1))
        for _ in range(20):
            fusepass.explain(compiled, torch.ones(2))
        limit = torch._dynamo.config.recompile_limit
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            for size in range(1, limit + 1):
                compiled(torch.ones(size))
        assert len(fusepass.last_report(compiled).operations) == limit

    def test_beyond_the_limit_it_still_explains(self) -> None:
        compiled = torch.compile(branch, backend="fusepass", options=EAGER, dynamic=False)
        for size in range(1, torch._dynamo.config.recompile_limit + 3):
            compiled(torch.ones(size))
        assert treatments(fusepass.explain(compiled, torch.ones(99))) == ["where"]

    def test_sizes_are_not_learnt(self) -> None:
        """Else the user's next compile would be one with dynamic shapes."""
        compiled = torch.compile(branch, backend="fusepass", options=EAGER)
        for size in (3, 4, 5):
            fusepass.explain(compiled, torch.ones(size))
        compiled(torch.ones(6))
        with (
            torch._dynamo.config.patch(error_on_recompile=True),
            pytest.raises(torch._dynamo.exc.RecompileError),
        ):
            compiled(torch.ones(7))

    def test_memory_is_given_back(self) -> None:
        alive = lambda: sum(isinstance(o, torch.fx.GraphModule) for o in gc.get_objects())  # noqa: E731
        compiled = torch.compile(branch, backend="fusepass", options=EAGER)
        compiled(torch.ones(2))
        fusepass.explain(compiled, torch.ones(2))
        gc.collect()
        before, logs = alive(), len(log._logs)
        for _ in range(5):
            fusepass.explain(compiled, torch.ones(2))
        gc.collect()
        assert alive() <= before
        assert len(log._logs) == logs

    def test_last_report_is_about_the_users_compile(self) -> None:
        compiled = torch.compile(branch, backend="fusepass", options=EAGER)
        compiled(torch.ones(2))
        with pytest.warns(fusepass.errors.OptionsChanged), fusepass.options(treatment="cond"):
            fusepass.explain(branch, torch.ones(2))
        assert treatments(fusepass.last_report(compiled)) == ["where"]


def test_what_cannot_be_called_is_named() -> None:
    with pytest.raises(NotAProgram, match="type int is no program"):
        fusepass.explain(5)
