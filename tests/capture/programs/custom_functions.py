"""Custom ``autograd.Function`` in arms: total if forward and backward are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..support.inputs import InputSets, cases
from ..support.program import WHERE, Family, cond, keep

FAMILY = Family("custom_functions")
NAN = float("nan")
KEPT = keep("partial_op") | keep("untraceable") | keep("random_op") | keep("none_grad")


def roots() -> InputSets:
    """Positive, with a zero, with a negative number, with NaN."""
    return [
        (torch.tensor(x), torch.tensor([1.0, 2.0, 3.0]))
        for x in ([4.0, 9.0, 1.0], [4.0, 0.0, 1.0], [-1.0, 2.0, 4.0], [NAN, 1.0, 2.0])
    ]


ROOTS = cases(roots)


class Root(torch.autograd.Function):
    """Its backward is infinite at zero and NaN below."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient / (2 * x.sqrt())


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, y * 2

    @staticmethod
    def backward(ctx: Any, dx: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        return dx * 0.1 + dy, dy.exp() * dx


class Rounded(torch.autograd.Function):
    """Straight through, with no gradient for the step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor) -> Tensor:
        return torch.round(x / step) * step

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Picked(torch.autograd.Function):
    """Partial in the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x[y.long() - 1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient * 1, gradient * 0


class Noisy(torch.autograd.Function):
    """Random in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + torch.rand_like(gradient)


@FAMILY.program(ROOTS, WHERE, grad=True, tags="contexts inductor")
def infinite_backward(x: Tensor, y: Tensor) -> Tensor:
    return Root.apply(x) * y if (x > 0).all() else x * 2 + y


@FAMILY.program(ROOTS, WHERE, grad=True)
def two_operands_and_results(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 4:
        a, b = Scaled.apply(x, y)
    else:
        a, b = x * 3, y * x
    return a + b.sum()


@FAMILY.program(ROOTS, WHERE, grad=True)
def in_both_arms(x: Tensor, y: Tensor) -> Tensor:
    h = Root.apply(x.abs()) if x.sum() > 4 else Root.apply(y + x * x)
    return h + x * y


@FAMILY.program(ROOTS, WHERE, expect_grad=(KEPT,), grad=True)
def no_gradient_for_an_operand(x: Tensor, y: Tensor) -> Tensor:
    return Rounded.apply(x, y) if x.sum() > 4 else x * y


@FAMILY.program(ROOTS, KEPT | cond("partial_op"), grad=True)
def partial_forward(x: Tensor, y: Tensor) -> Tensor:
    return Picked.apply(x, y) if x.sum() > 4 else x * y


@FAMILY.program(ROOTS, WHERE, expect_grad=(KEPT,), grad=True)
def random_backward(x: Tensor, y: Tensor) -> Tensor:
    return Noisy.apply(x) * y if x.sum() > 4 else x * y
