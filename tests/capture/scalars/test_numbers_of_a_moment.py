"""Numbers of a moment: what they were read from is written before the backward, or raises on time.

Inductor takes copies away, and computes cheap values again in the backward: from memory that was
written meanwhile, without a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass

from ..support.side_by_side import side_by_side, signed
from .test_deferred_items import stays

CODEGENS = ("eager", "inductor")


class Scaled(nn.Module):
    """Divides by what a buffer holds, and then writes the buffer."""

    read: Callable[[Tensor], Any] = staticmethod(lambda x: x[0].item())

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2 / self.read(self.scale)
        self.scale.add_(1)
        return y


class Computed(Scaled):
    read = staticmethod(lambda x: x[0].item() * 2 + 1)


class Whole(Scaled):
    read = staticmethod(lambda x: int(x[1]))


class Truth(Scaled):
    read = staticmethod(lambda x: 1.0 + bool((x > 2.5)[0]))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("kind", [Scaled, Computed, Whole, Truth])
def test_a_buffer_is_written_before_the_backward(kind: type[Scaled], codegen: str) -> None:
    torch.manual_seed(0)
    side_by_side(kind(), *[(torch.ones(3),)] * 3, grad=True, codegen=codegen)


def divided(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    return h / x[0].item(), h


def through_what_is_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x.detach() + 1
    return x * h.max().item() * h[0].item(), h


@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("function", [divided, through_what_is_returned])
def test_the_caller_writes_what_was_read_before_the_backward(
    function: Callable[..., Any], codegen: str
) -> None:
    compiled = torch.compile(function, backend="fusepass", options={"codegen": codegen})
    for first in (2.0, -4.0, 0.5):
        grads = []
        for target in (function, compiled):
            leaf = torch.tensor([first, 1.0, 0.25], requires_grad=True)
            given = leaf.clone()
            y, h = target(given)
            with torch.no_grad():
                given.zero_()
                h.zero_()
            grads.append(torch.autograd.grad(y.sum(), leaf)[0])
        assert torch.equal(*grads), grads


def of_no_memory_outside(x: Tensor) -> Tensor:
    return x / x.norm().item()


def test_what_nobody_can_write_is_not_copied() -> None:
    outcome = side_by_side(of_no_memory_outside, *signed(1.0, -0.5, 2.0), grad=True)
    stays(outcome)
    assert outcome.ops["amax"] == outcome.ops["clone"] == 0


def in_an_arm(x: Tensor, index: Tensor, level: Tensor) -> Tensor:
    h = x * 2
    y = h.index_select(0, index) if (index < 3).all() else torch.where(h > 0, h, x)
    torch._dynamo.graph_break()
    if level:
        h.zero_()
    return y


def test_what_a_cond_keeps_is_written_in_a_later_frame() -> None:
    x = torch.tensor([2.0, 1.0, 0.5])
    out, fits = torch.tensor([0, 1, 7]), torch.tensor([0, 1, 1])
    calls = [(x, out, torch.tensor(1.5)), (x, fits, torch.tensor(0.0)), (x, out, torch.tensor(0.0))]
    outcome = side_by_side(in_an_arm, *calls, grad=True)
    assert "cond" in [treatment for treatment, _ in outcome.treatments]


def from_an_earlier_frame(x: Tensor, whole: Tensor, parts: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    torch._dynamo.graph_break()
    y = x * (whole % parts) if parts else x + h
    torch._dynamo.graph_break()
    h.add_(1)
    return y * h


def test_what_a_cond_keeps_comes_from_an_earlier_frame() -> None:
    x, whole = torch.tensor([1.5, -1.0, 0.5]), torch.tensor(7)
    outcome = side_by_side(
        from_an_earlier_frame, *[(x, whole, torch.tensor(n)) for n in (2, 0, 3)], grad=True
    )
    assert "cond" in [treatment for treatment, _ in outcome.treatments]


def scaled_in_place(x: Tensor, number: Tensor) -> Tensor:
    z = x * 2
    z.add_(z * 2, alpha=number.item())
    z.addcmul_(x, x, value=number.item()).addcdiv_(x, x + 7, value=number.item())
    return z + 1


def scaled(x: Tensor, number: float) -> Tensor:
    z = x * 2
    return z.add_(z * 2, alpha=number)


NUMBERS = (-2.0, 1e-300, 0.1, 16777217.0, 1e39, math.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_scale_is_rounded_and_refused_as_in_eager(dtype: torch.dtype) -> None:
    x = torch.tensor([1.1, -0.3, 2.7], dtype=dtype)
    doubles = [torch.tensor(number, dtype=torch.float64) for number in NUMBERS]
    side_by_side(scaled_in_place, *[(x, number) for number in doubles])
    side_by_side(scaled, *[(x, number) for number in NUMBERS])


def said_behind_a_failure(x: Tensor, number: Tensor) -> Tensor:
    with torch.no_grad():
        z = torch.add(x, x, alpha=number.item())
    print("at", x)  # noqa: T201 - what is tested
    return z + x


def test_lines_behind_a_failing_scale_are_not_written_and_grad_mode_is_restored() -> None:
    x = torch.tensor([1.0, -0.5])
    doubles = [torch.tensor(number, dtype=torch.float64) for number in NUMBERS]
    side_by_side(said_behind_a_failure, *[(x, number) for number in doubles])
    assert torch.is_grad_enabled()
    fusepass.reset()
