"""What is shown, raised or returned late is as it was, whatever the program writes afterwards.

Where writes go to parts of a memory, Inductor takes away the copies that a ``clone`` makes.
"""

from __future__ import annotations

# ruff: noqa: T201
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.testing.compare import assert_same

from .support.written import assert_late, assert_same_text

INDUCTOR = {"codegen": "inductor"}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def raises(x: Tensor, v: Tensor) -> Tensor:
    x.add_(1)
    if x.sum() > 3:
        raise ValueError(f"big {x} {v}")
    v.zero_()
    return x.sum()


def shows(x: Tensor, v: Tensor) -> Tensor:
    x.add_(1)
    print(x, v)
    v.zero_()
    return x.sum()


def shows_one(x: Tensor, v: Tensor) -> Tensor:
    x.add_(1)
    print(x[2], v.sum(), x[2].item())
    v.zero_()
    return x.sum()


def reads(x: Tensor, v: Tensor) -> Any:
    x.add_(1)
    number = x[2].item()
    v.zero_()
    return number, x


def parts(x: Tensor, v: Tensor) -> Tensor:
    x[0].add_(1)
    print(x)
    x[1:].zero_()
    print(x, v)
    return x.sum()


@pytest.mark.parametrize("program", [raises, shows, shows_one, reads, parts])
def test_inputs_that_share_memory(program: Callable[..., Any]) -> None:
    def small() -> tuple[Tensor, Tensor]:
        x = torch.arange(3.0) - 5
        return x, x[1:]

    def large() -> tuple[Tensor, Tensor]:
        x = torch.arange(3.0) + 1
        return x, x[1:]

    compiled = assert_same_text(program, small, large, options=INDUCTOR)
    assert not fusepass.last_report(compiled).graph_breaks


class Buffers(nn.Module):
    """Two buffers of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4))
        self.register_buffer("tail", self.state[2:])

    def forward(self, x: Tensor) -> Tensor:
        self.state.add_(x)
        print("state", self.state)
        self.tail.zero_()
        return self.state.sum()


def test_buffers_that_share_memory(capsys: pytest.CaptureFixture[str]) -> None:
    eager, model = Buffers(), Buffers()
    compiled = torch.compile(model, backend="fusepass")
    for _ in range(3):
        assert_same(eager(torch.ones(4)), compiled(torch.ones(4)), "result")
        assert_same(eager.state, model.state, "buffer")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0::2] == lines[1::2]
    assert_late(compiled, 1)


def flips(x: Tensor, v: Tensor) -> Any:
    x.logical_not_()
    truth = bool(x[2])
    print(x[2])
    v.fill_(False)
    return truth, x


def test_truth_values() -> None:
    def inputs() -> tuple[Tensor, Tensor]:
        x = torch.zeros(3, dtype=torch.bool)
        return x, x[1:]

    assert_same_text(flips, inputs, options=INDUCTOR)


def negated(x: Tensor, v: Tensor) -> Tensor:
    x.neg_()
    if x.isnan().any():
        raise ValueError(f"{x}")
    v.zero_()
    return x + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
def test_restored_tensors_are_bit_equal(dtype: torch.dtype) -> None:
    def inputs() -> tuple[Tensor, Tensor]:
        x = torch.tensor([0.0, -0.0, float("nan"), -float("inf"), 1.5]).to(dtype)
        return x, x[1:]

    eager, ours = inputs(), inputs()
    compiled = torch.compile(negated, backend="fusepass")
    with pytest.raises(ValueError, match="nan") as expected:
        negated(*eager)
    with pytest.raises(ValueError, match="nan") as found:
        compiled(*ours)
    assert str(found.value) == str(expected.value)
    bits = BITS[dtype.itemsize // (2 if dtype.is_complex else 1)]
    seen = [torch.view_as_real(x) if dtype.is_complex else x for x, _ in (ours, eager)]
    assert torch.equal(seen[0].view(bits), seen[1].view(bits))


@pytest.mark.parametrize("like", ["rows", "columns", "every other", "expanded", "scalar", "none"])
def test_memory_of_any_form(like: str) -> None:
    def inputs() -> tuple[Tensor, Tensor]:
        base = torch.arange(24.0).reshape(4, 6)
        forms = {
            "rows": base,
            "columns": base.t(),
            "every other": base[::2, ::2],
            "expanded": base[:1].expand(3, 6).contiguous(),
            "scalar": base[0, 0],
            "none": base[:0],
        }
        return forms[like], base.view(-1)[12:]

    def program(x: Tensor, v: Tensor) -> Tensor:
        x.add_(1)
        print(x)
        v.zero_()
        x.mul_(2)
        return x.sum()

    assert_same_text(program, inputs, options=INDUCTOR)
