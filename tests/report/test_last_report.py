"""``fusepass.last_report``: what happened to one compiled callable so far."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass import errors

EAGER = {"codegen": "eager"}


class Tagged(Tensor):
    """No branch leaves it beside a plain tensor."""


def branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def compiled(function: object = branch, **kwargs: object) -> object:
    return torch.compile(function, backend="fusepass", options=EAGER, **kwargs)  # type: ignore[call-overload]


def treatments(program: object) -> list[str]:
    return [d.treatment for d in fusepass.last_report(program).decisions if d.rule == "branch"]


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1


@pytest.mark.parametrize("target", [branch, Net()])
def test_function_and_module(target: object) -> None:
    program = compiled(target)
    program(torch.ones(2))  # type: ignore[operator]
    assert treatments(program) == ["where"]
    assert fusepass.last_report(program).regions_per_call == 1


def test_decorated() -> None:
    @torch.compile(backend="fusepass", options=EAGER)
    def program(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    program(torch.ones(2))
    assert treatments(program) == ["where"]


def test_equal_to_what_explain_says() -> None:
    program = compiled()
    program(torch.ones(2))  # type: ignore[operator]
    assert fusepass.last_report(program) == fusepass.explain(program, torch.ones(2))


class TestNone:
    """NoReport says what to do."""

    def test_not_called_yet(self) -> None:
        with pytest.raises(errors.NoReport, match="branch") as caught:
            fusepass.last_report(compiled())
        assert "Call it once" in str(caught.value)
        assert isinstance(caught.value, LookupError)

    @pytest.mark.parametrize("what", [branch, Net(), 3, None])
    def test_not_compiled(self, what: object) -> None:
        with pytest.raises(errors.NoReport):
            fusepass.last_report(what)

    def test_compiled_by_another_backend(self) -> None:
        program = torch.compile(branch, backend="eager")
        program(torch.ones(2))
        with pytest.raises(errors.NoReport, match="fusepass"):
            fusepass.last_report(program)

    def test_after_reset(self) -> None:
        program = compiled()
        program(torch.ones(2))  # type: ignore[operator]
        fusepass.reset()
        with pytest.raises(errors.NoReport):
            fusepass.last_report(program)
        program(torch.ones(2))  # type: ignore[operator]
        assert treatments(program) == ["where"]

    def test_after_reset_of_torch(self) -> None:
        program = compiled()
        program(torch.ones(2))  # type: ignore[operator]
        torch.compiler.reset()
        program(torch.ones(2))  # type: ignore[operator]
        assert treatments(program) == ["where"]
        assert len(fusepass.last_report(program).operations) == 1


class TestRecompiles:
    """Each compile adds its graph; regions per call stay what one call enters."""

    def test_another_dtype(self) -> None:
        program = compiled()
        program(torch.ones(2))  # type: ignore[operator]
        program(torch.ones(2, dtype=torch.float64))  # type: ignore[operator]
        report = fusepass.last_report(program)
        assert len(report.operations) == 2
        assert report.regions_per_call == 1
        assert treatments(program) == ["where"] * 2

    def test_dynamic_after_two_sizes(self) -> None:
        program = compiled()
        for size in (2, 3, 4, 5):
            program(torch.ones(size))  # type: ignore[operator]
        assert len(fusepass.last_report(program).operations) == 2

    def test_break_on_some_shapes_only(self) -> None:
        def shape_dependent(x: Tensor) -> Tensor:
            y = x if x.shape[0] == 2 else x.as_subclass(Tagged)
            return y if x.sum() > 0 else x - 1

        program = compiled(shape_dependent, dynamic=False)
        program(torch.ones(3))  # type: ignore[operator]
        assert "keep" in treatments(program)
        assert len(fusepass.last_report(program).graph_breaks) == 1


class TestSharing:
    """torch runs one compiled version for equal compiles of one function."""

    def test_same_function_twice(self) -> None:
        first, second = compiled(), compiled()
        first(torch.ones(2))  # type: ignore[operator]
        with torch._dynamo.config.patch(error_on_recompile=True):
            second(torch.ones(2))  # type: ignore[operator]
        assert fusepass.last_report(first) == fusepass.last_report(second)

    def test_other_options_have_their_own(self) -> None:
        first = compiled()
        second = torch.compile(branch, backend="fusepass", options={"treatment": "keep", **EAGER})
        first(torch.ones(2))  # type: ignore[operator]
        second(torch.ones(2))
        assert (treatments(first), treatments(second)) == (["where"], ["keep"])

    def test_other_function_with_equal_options_has_its_own(self) -> None:
        first, second = compiled(), compiled(lambda x: x + 1)
        first(torch.ones(2))  # type: ignore[operator]
        with pytest.raises(errors.NoReport):
            fusepass.last_report(second)
        second(torch.ones(2))  # type: ignore[operator]
        assert treatments(second) == []

    def test_same_function_kept_twice(self) -> None:
        """Also where the only record is a branch that stays."""

        def kept(x: Tensor) -> Tensor:
            if x.sum() > 0:
                x = x.as_subclass(Tagged)
            return x

        first, second = compiled(kept), compiled(kept)
        first(torch.ones(2))  # type: ignore[operator]
        second(torch.ones(2))  # type: ignore[operator]
        assert treatments(second) == ["keep"]

    def test_log_goes_with_its_callable(self) -> None:
        import gc

        from fusepass.report import log

        program = compiled(lambda x: x + 1)
        program(torch.ones(2))  # type: ignore[operator]
        assert log._logs
        del program
        torch.compiler.reset()
        gc.collect()
        assert not log._logs


def test_decision_of_a_resumed_function_is_not_listed_twice() -> None:
    def two(x: Tensor) -> Tensor:
        y = x * 1
        if x.sum() > 0:
            y = x
        z = y * 2 if y is x else y  # a question that no tensor answers
        return z * 2 if z.sum() > 1 else z - 1

    program = compiled(two)
    for sign in (1, -1):
        program(torch.ones(2) * sign)  # type: ignore[operator]
    report = fusepass.last_report(program)
    kept = [d for d in report.decisions if d.treatment == "keep"]
    assert len(kept) == 1
    assert len(report.graph_breaks) == 1


@pytest.mark.usefixtures("cache_dir")
def test_backward_is_part_of_it() -> None:
    """Although Inductor sees it only when it is first called."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    program = torch.compile(product, backend="fusepass")
    x = torch.ones(2, 2, requires_grad=True)
    result = program(x, torch.ones(2, 2))
    after = lambda: [d for d in fusepass.last_report(program).decisions if d.station == "after"]  # noqa: E731
    assert len(after()) == 1
    result.sum().backward()
    assert len(after()) == 2
