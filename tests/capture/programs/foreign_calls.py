"""Higher-order calls around and inside arms, and callables recompiled for other arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..support.inputs import B, InputSets, signs
from ..support.program import FREE, WHERE, Family

FAMILY = Family("foreign_calls")
ONE = signs((B, 4))


class Scaled(torch.autograd.Function):
    """Its backward is not the derivative of its forward, so that a wrong turn shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 7 + x


@FAMILY.program(ONE, FREE, grad=True)
def autograd_function_in_arm(x: Tensor) -> Tensor:
    return Scaled.apply(x) if x.sum() > 0 else x * 3


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        if x.sum() > 0:
            return x * 2
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * x


@FAMILY.program(ONE, FREE, grad=True)
def branch_inside_autograd_function(x: Tensor) -> Tensor:
    return Branching.apply(x) + 1


def choose(h: Tensor) -> Tensor:
    return h.sin() if h.sum() > 0 else h.cos()


@FAMILY.program(ONE, FREE, grad=True)
def branch_inside_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(choose, x, use_reentrant=False) * 2


@FAMILY.program(ONE, FREE, grad=True)
def checkpoint_inside_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return checkpoint(torch.sin, x, use_reentrant=False)
    return x.cos()


@FAMILY.program(ONE, FREE)
def vmap_inside_arm(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row / row.abs().sum())(x) if x.sum() > 0 else x * 3


@FAMILY.program(ONE, FREE)
def derivative_inside_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return torch.func.grad(lambda t: t.pow(3).sum())(x)
    return x * 3


@FAMILY.program(ONE, FREE)
def numpy_inside_arm(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2) if x.sum() > 0 else x * 3


@FAMILY.program(ONE, FREE)
def cond_inside_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return torch.cond(x.amax() > 1, lambda t: t.sin(), lambda t: t.cos(), (x,))
    return x * 3


def optional(seed: int) -> InputSets:
    x, y = torch.ones(3), torch.tensor([1.0, 2.0, 3.0])
    return [(x, None), (-x, None), (x.clone(), y), (-x, y.clone())]


@FAMILY.program(optional, WHERE, recompiles=True, grad=True)
def optional_tensor_argument(x: Tensor, bias: Tensor | None) -> Tensor:
    h = x * 2 if bias is None else x + bias
    return h.exp() if x.sum() > 0 else h.sin()


def flags(seed: int) -> InputSets:
    x = torch.ones(3)
    return [(x * sign, flag) for flag in (True, False) for sign in (1.0, -1.0)]


@FAMILY.program(flags, WHERE, recompiles=True, grad=True)
def python_flag_argument(x: Tensor, double: bool) -> Tensor:
    h = x * 2 if double else x
    return h.exp() if x.sum() > 0 else h.sin()


def dtypes_and_shapes(seed: int) -> InputSets:
    base = torch.arange(1.0, 7.0)
    shapes = (base, base.reshape(2, 3), base.double(), base.half().reshape(3, 2))
    return [(x * sign,) for x in shapes for sign in (1, -1)]


@FAMILY.program(dtypes_and_shapes, WHERE, recompiles=True, grad=True)
def other_dtypes_and_shapes(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


@FAMILY.program(flags, WHERE, recompiles=True)
class ModuleFlag(nn.Module):
    def forward(self, x: Tensor, train: bool) -> Tensor:
        self.train(train)
        h = x.exp() if self.training else x.sin()
        return h * 2 if x.sum() > 0 else h * 3
