"""What a mask selects, computed with and stored through the mask: ``x[mask] += v`` and its kin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..support.inputs import InputSets, cases
from ..support.program import DROP, WHERE, Family, keep

FAMILY = Family("masked_updates")
NAN, INF = float("nan"), float("inf")
# Where gradients are wanted an update is gated, and stays a selection.
EITHER = DROP | WHERE
KEPT = keep("untraceable")


def masks(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (5, 7)) -> Any:
    """A tensor, its mask (some, none, all elements), a scalar and another tensor."""

    def build() -> InputSets:
        generator = torch.Generator().manual_seed(3)
        x = (torch.randn(5, 7, generator=generator) * 4).to(dtype)
        y = (torch.randn(5, 7, generator=generator) * 4).to(dtype)
        some = torch.rand(shape, generator=generator) < 0.4
        v = torch.tensor(1.3)
        every = (some, some & False, some | True, ~some)
        return [(x.clone(), mask, v.clone(), y.clone()) for mask in every]

    return cases(build)


MASKED = masks()


def update(inputs: Any, *verdict: Any, family: Family = FAMILY, **rest: Any) -> Any:
    """A program ``h = x * 2; if mask.any(): store(h, mask, v, y)``."""

    def collect(store: Any) -> Any:
        def program(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
            h = x * 2 + y * 0
            if mask.any():
                h = store(h, mask, v, y)
            return h + 1

        family.add(store.__name__.strip("_"), lambda: program, inputs, *verdict, **rest)
        return store

    return collect


GRAD: dict[str, Any] = {"grad": True, "frozen": (2,), "expect_grad": (EITHER,)}


@update(MASKED, DROP, **GRAD, tags="inductor contexts")
def added(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] += 0.3
    return h


@update(MASKED, DROP, **GRAD)
def subtracted_tensor(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] -= v
    return h


@update(MASKED, DROP, **GRAD, tags="inductor contexts")
def multiplied(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] *= v
    return h


@update(MASKED, DROP, **GRAD)
def divided(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] /= 3
    return h


@update(MASKED, DROP, **GRAD, tags="inductor")
def scaled_and_shifted(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = h[m] * 2 + 1
    return h


@update(MASKED, DROP, **GRAD)
def under_a_mask_made_again(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m & (y > 0)] = h[m & (y > 0)] * v
    return h


@update(MASKED, DROP, **GRAD)
def number_in_front(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = 1 / h[m] - (2 - h[m])
    return h


@update(MASKED, DROP, **GRAD)
def of_two_tensors(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = h[m] * y[m] + v
    return h


@update(MASKED, DROP, **GRAD)
def of_another_tensor(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = y[m]
    return h


@update(MASKED, DROP, **GRAD)
def added_in_place_first(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    part = h[m]
    same = part.float()
    same.mul_(v).clamp_(-1, 1)
    h[m] = part
    return h


@update(MASKED, DROP, **GRAD)
def read_before_it_is_written(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    part = h[m]
    h[m] = 0.0
    h[m] += part + h[m]
    return h


@update(MASKED, DROP, **GRAD)
def twice(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] += 1
    h[m] *= h[m]
    return h


@update(MASKED, DROP, **GRAD)
def chosen(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    part = h[m]
    h[m] = torch.where(part > 1, part.abs().sqrt(), -part)
    return h


@update(MASKED, DROP, **GRAD)
def rounded_to_half(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = h[m].half().to(h.dtype)
    return h


@update(MASKED, DROP, **GRAD)
def functions(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = torch.maximum(F.relu(h[m]), y[m].clamp(min=-1)) + h[m].square() + h[m] ** 2
    return h


@update(masks(shape=(5,)), DROP, **GRAD, tags="inductor")
def rows(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] *= y[0].detach()
    return h


@update(masks(shape=(7,)), DROP, **GRAD)
def columns(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[:, m] -= 1
    return h


@update(masks(shape=(7,)), DROP, **GRAD)
def columns_behind_an_ellipsis(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[..., m] = h[..., m] / y[..., m]
    return h


for dtype in (torch.float16, torch.bfloat16, torch.float64):

    def of_dtype(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
        h = x.clone()
        if mask.any():
            h[mask] *= v
            h[mask] = h[mask] + 0.1 / y[mask]
        return h

    FAMILY.add(f"dtype_{dtype}"[6:], lambda f=of_dtype: f, masks(dtype), DROP)


def of_integers(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x.clone()
    if mask.any():
        h[mask] += 1
        h[mask] = h[mask] * y[mask] - 3
    return h


FAMILY.add("integers", lambda: of_integers, masks(torch.int64), DROP)


@FAMILY.program(masks(torch.float16), DROP)
def half_and_a_float(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    # What is written in place keeps its dtype, computed in the wider one.
    if mask.any():
        part = x[mask]
        part *= y.float()[mask]
        x[mask] = part
    return x


@FAMILY.program(MASKED, DROP)
def input_itself(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    if mask.any():
        x[mask] += v
    return x * 2


@FAMILY.program(MASKED, DROP)
def part_of_the_input(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    part = x[:, 1:]
    if mask[:, 1:].any():
        part[mask[:, 1:]] *= 3
    return x + 1, part * 2


@FAMILY.program(MASKED, WHERE, grad=True, frozen=(2,))
def another_question(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x * 2 + y * 0
    if (mask.sum() > 12) & (x.sum() < 1e9):
        h[mask] = h[mask] / y[mask]
    return h + 1


@FAMILY.program(MASKED, WHERE, grad=True, frozen=(2,))
def update_or_another(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x * 2 + y
    if mask.sum() > 12:
        h[mask] += 1
    else:
        h[~mask] = h[~mask] * v
    return h


@FAMILY.program(MASKED, DROP, DROP, expect_grad=(EITHER, EITHER), grad=True, frozen=(2,))
def sum_and_not(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x * 2 + y
    if mask.sum() > 0:
        h[mask] += 1
    rest = ~mask
    if not (~rest).all():
        h[rest] -= v
    return h


@FAMILY.program(MASKED, WHERE, WHERE | DROP, grad=True, frozen=(2,))
def inside_another_branch(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x * 2 + y
    if mask.sum() < 30:
        h = h + x
        if mask.any():
            h[mask] *= 0.5
    return h


def singular() -> InputSets:
    """Values whose gradients are infinite or NaN, under the mask and outside it."""
    x = torch.tensor([0.0, 1.0, -1.0, INF, NAN, 4.0])
    y = torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0, INF])
    some = torch.tensor([False, True, False, False, False, True])
    v = torch.tensor(0.0)
    return [(x.clone(), m, v, y.clone()) for m in (some, some & False, ~some, some | True)]


@FAMILY.program(cases(singular), EITHER, grad=True, frozen=(2,), tags="inductor")
def no_gradient_outside_the_mask(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x + y * 0.5
    if mask.any():
        h[mask] = x[mask].sqrt() / y[mask] + 1 / x[mask]
    return h


@FAMILY.program(MASKED, DROP, expect_grad=(EITHER,), grad=True, frozen=(2,))
class Layers(nn.Module):
    """One graph of all layers, each with its update."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(x) + y
            if mask.any():
                h[mask] += 1
            x = h
        return x


@FAMILY.program(MASKED, DROP, expect_grad=(WHERE,), grad=True, frozen=(2,))
def of_a_tensor_used_there_only(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[mask] *= y[mask]
    return h


@FAMILY.program(MASKED, DROP, expect_grad=(EITHER,), grad=True, frozen=(2,))
def mask_written_afterwards(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x * 2 + y
    if mask.any():
        h[mask] *= v
    mask.logical_not_()
    return h + mask


@FAMILY.program(MASKED, DROP, grad=True, frozen=(2,))
def mask_of_a_store_written_afterwards(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x * 2 + y
    if mask.any():
        h[mask] = 0.0
    mask.logical_not_()
    return h + mask


@update(MASKED, DROP, **GRAD)
def without_gradient(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        h[m] = h[m] * 2
    return h
