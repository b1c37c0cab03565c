"""How often the host waits for what lines show, what is copied, and what programs get back."""

from __future__ import annotations

# ruff: noqa: T201
import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.capture.effects import runtime
from tests.harness.call import call

from ..support.written import assert_late, assert_same_text

logger = logging.getLogger("fusepass_tests.events")


def inputs() -> tuple[Tensor]:
    return (torch.linspace(-2.0, 3.0, 12).reshape(3, 4),)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[torch.Size]]]:
    """Tensors are taken to be on a device: the shapes copied at each wait for it."""
    waits: list[list[torch.Size]] = []
    brought = runtime._brought

    def note(tensors: list[Tensor]) -> list[Tensor]:
        waits.append([tensor.shape for tensor in tensors])
        return brought(tensors)

    monkeypatch.setattr(runtime, "_brought", note)
    runtime.NEAR.remove("cpu")
    yield waits
    runtime.NEAR.append("cpu")


def compiled(program: Any) -> Any:
    return torch.compile(program, backend="fusepass", options={"codegen": "eager"})


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x).relu()
            print(i, x.mean(), x.max().item(), (x > 0).sum().item(), x[0])
        return x


def test_all_numbers_are_copied_to_the_host_at_once(far: list[list[torch.Size]]) -> None:
    model = Layers()
    target = compiled(model)
    for _ in range(2):
        far.clear()
        ours = call(target, inputs())
        (shapes,) = far  # one wait
        assert shapes.count(torch.Size([10])) == 1  # means and maxima, stacked
        assert shapes.count(torch.Size([5])) == 1  # counts
        assert shapes.count(torch.Size([4])) == 5  # rows
        assert len(shapes) == 7
        assert ours.said == call(model, inputs()).said
    assert_late(target)


def test_what_is_returned_is_not_handed_out_twice(far: list[list[torch.Size]]) -> None:
    def program(x: Tensor) -> Tensor:
        loss = (x * 2).square().mean()
        print(loss)
        return loss

    target = assert_same_text(program, inputs, lambda: (inputs()[0].requires_grad_(),))
    assert_late(target, graphs=2)
    assert all(shapes == [torch.Size([])] for shapes in far)


def test_constants_cost_no_wait(far: list[list[torch.Size]]) -> None:
    def program(x: Tensor) -> Tensor:
        print("layer", 3, x.shape)
        return x * 2

    assert_late(assert_same_text(program, inputs), 1)
    assert far == []


def test_records_below_the_level_cost_no_wait(far: list[list[torch.Size]]) -> None:
    def program(x: Tensor) -> Tensor:
        logger.debug("sum %s", x.sum())
        if x.max() > 100:
            logger.debug("large %s", x.max())
        return x * 2

    logger.setLevel(logging.INFO)
    target = assert_same_text(program, inputs)
    assert far == []
    logger.setLevel(logging.DEBUG)
    ours = call(target, inputs())
    assert [one.text for one in ours.said] == [f"sum {inputs()[0].sum()!r}"]
    assert len(far) == 1


def test_lines_in_arms_cost_a_flag(far: list[list[torch.Size]]) -> None:
    def program(x: Tensor) -> Tensor:
        for limit in (1.0, 2.0, 100.0):
            x = x + 0.5
            if x.max() > limit:
                print("large", x, x.max())
        return x * 2

    assert_late(assert_same_text(program, inputs))
    assert all(shapes == [torch.Size([3])] for shapes in far)  # three flags
    assert len(far) == 2


def test_flags_lines_and_exceptions_in_one_wait(far: list[list[torch.Size]]) -> None:
    def program(x: Tensor) -> Tensor:
        print("sum", x.sum(), x.mean())
        if x.max() > 2:
            print("large", x.max())
        if x.isnan().any():
            raise ValueError("nan")
        return x * 2

    assert_late(assert_same_text(program, inputs, lambda: (inputs()[0] * float("nan"),)))
    assert len(far) == 4


def test_large_tensors_stay_where_they_are(far: list[list[torch.Size]]) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        print(y, y.sum())
        return y

    assert_late(assert_same_text(program, lambda: (torch.ones(600, 600),)), 1)
    assert all(shapes == [torch.Size([])] for shapes in far)


def test_results_are_the_programs_own() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor, None, int]:
        y = x * 2
        z = y[1:]
        print(y, z, x)
        return y, z, x, None, 3

    eager, ours = program(*inputs()), compiled(program)(*inputs())
    assert len(eager) == len(ours)
    assert ours[0].data_ptr() + ours[0].stride(0) * 4 == ours[1].data_ptr()
    assert type(ours[0]) is Tensor
    x = inputs()[0]
    assert compiled(program)(x)[2] is x


def test_printed_tensors_are_freed() -> None:
    import gc
    import weakref

    def program(x: Tensor) -> Tensor:
        y = x * 2
        print(y)
        return y.sum()

    target = compiled(program)
    (x,) = inputs()
    call(target, (x,))
    reference = weakref.ref(x)
    del x
    gc.collect()
    assert reference() is None


def test_a_stream_that_fails() -> None:
    class Broken:
        def write(self, _: str) -> None:
            raise BrokenPipeError("gone")

        def flush(self) -> None:
            pass

    def program(x: Tensor) -> Tensor:
        print("to nobody", x)
        return x * 2

    target = compiled(program)
    call(target, inputs())
    import contextlib

    with contextlib.redirect_stdout(Broken()), pytest.raises(BrokenPipeError, match="gone"):  # type: ignore[type-var]
        target(*inputs())


def prints_numbers(x: Tensor) -> Tensor:
    loss = (x * 2).sum()
    print(loss, "of", x.numel(), loss.detach().long(), (x > 0).any(), sep=", ")
    print("mean", x.mean(), f"{loss:.3f} {loss.item()}", loss)
    return loss


@pytest.mark.parametrize("graded", [False, True])
def test_numbers_need_no_printing_of_torchs(graded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> tuple[Tensor]:
        return (inputs()[0].requires_grad_(graded),)

    target = assert_same_text(prints_numbers, make)
    asked: list[Tensor] = []
    monkeypatch.setattr(torch._tensor_str, "_Formatter", asked.append)
    call(target, make())
    assert not asked


def test_print_options_of_the_moment() -> None:
    target = compiled(prints_numbers)
    for options in ({}, {"precision": 2}, {"sci_mode": True}, {}):
        with torch._tensor_str.printoptions(**options):
            eager, ours = (call(f, inputs()) for f in (prints_numbers, target))
        assert ours.said == eager.said


@pytest.mark.parametrize("written", ["masked", "row"])
def test_stores_of_numbers_stay_beside_lines(written: str) -> None:
    """A store has no value: it was taken for a check of its number and left out."""

    def program(x: Tensor, a: float) -> Tensor:
        y = x + 1
        if written == "masked":
            y[y > 0] = a
        else:
            y[0] = a * 2
        print(y.sum())
        return y

    compiled = torch.compile(
        program, backend="fusepass", dynamic=True, options={"codegen": "eager"}
    )
    for a in (-1.0, 2.5, 3.5):
        x = torch.tensor([[-1.0, 0.0, 0.5]])
        with contextlib.redirect_stdout(io.StringIO()) as eager:
            expected = program(x, a)
        with contextlib.redirect_stdout(io.StringIO()) as late:
            assert torch.equal(compiled(x, a), expected)
        assert late.getvalue() == eager.getvalue()


def ratio_behind_a_raise(x: Tensor) -> Tensor:
    rows = x.shape[0]
    if x.isnan().any():
        raise ValueError(f"{rows * 4}")
    print(f"{x.mean():.3f} {x.numel() / rows}")
    return x * 1


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_a_line_shows_a_number_made_of_one_in_an_exception(codegen: str) -> None:
    calls = [lambda rows=rows: (torch.ones(rows, 4),) for rows in (3, 5, 7)]
    bad = torch.full((6, 4), torch.nan)
    compiled = assert_same_text(
        ratio_behind_a_raise, *calls, lambda: (bad.clone(),), options={"codegen": codegen}
    )
    decisions = fusepass.last_report(compiled).decisions
    assert [d.treatment for d in decisions if d.station == "capture"] == ["sink", "late"] * 2


class Changes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = self.seen = 0
        self.log: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 100:
            raise ValueError("too large")
        print("mean", x.mean())
        if x.sum() > 0:
            self.log.append(x * 2)
        if x[0, 0] < 0:
            self.seen = 1
        self.last = x.min().item()
        return x + 1


def test_what_arms_change_is_asked_at_the_same_wait(far: list[list[torch.Size]]) -> None:
    model, twin = Changes(), Changes()
    target = compiled(model)
    for sign in (1, -1, 1):
        x = inputs()[0] * sign
        far.clear()
        assert torch.equal(target(x), twin(x))
        assert len(far) == 1, far
        assert (model.seen, model.last, len(model.log)) == (twin.seen, twin.last, len(twin.log))
