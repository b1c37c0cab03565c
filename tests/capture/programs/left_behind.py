"""What one if/else leaves behind: several results, swapped names, predicates used as values."""

from __future__ import annotations

from torch import Tensor

from ..support.inputs import B, signs
from ..support.program import WHERE, Family, keep

FAMILY = Family("left_behind")
BATCH = signs((B, 4))
PAIR = signs((B, 4), (B, 4), flips=2)


@FAMILY.program(BATCH, WHERE, grad=True)
def two_results(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        a = x * 2
        b = x.sum(0)
    else:
        a = x - 2
        b = x.mean(0)
    return a, b


@FAMILY.program(BATCH, WHERE, grad=True, tags="inductor")
def results_of_three_dtypes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if x.sum() > 0:
        a, b, c = x * 2, x > 1, x.argmax(1)
    else:
        a, b, c = x * 3, x < 1, x.argmin(1)
    return a, b, c


@FAMILY.program(BATCH, WHERE, grad=True)
def swap(x: Tensor) -> Tensor:
    a, b = x * 2, x * 3
    if x.sum() > 0:
        a, b = b, a
    return a - b


@FAMILY.program(BATCH, WHERE, expect_grad=(WHERE | keep("nan_grad"),), grad=True)
def only_one_of_two_changes(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.sin(), x.cos()
    if x.sum() > 0:
        a = a * b
    return a + 1, b


@FAMILY.program(BATCH, WHERE, grad=True)
def temporaries_stay_inside(x: Tensor) -> Tensor:
    if x.sum() > 0:
        left = x * 2
        right = left + 1
        y = left * right
    else:
        other = x.exp()
        y = other - other.mean()
    return y


@FAMILY.program(BATCH, WHERE, grad=True, tags="contexts")
def predicate_used_as_value_too(x: Tensor) -> Tensor:
    total = x.sum()
    if total > 0:
        y = x / total
    else:
        y = x * total
    return y


@FAMILY.program(BATCH, WHERE, grad=True)
def predicate_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    positive = x.sum() > 0
    if positive:
        y = x * 2
    else:
        y = x * 3
    return y, positive


@FAMILY.program(BATCH, WHERE, WHERE, grad=True)
def same_predicate_twice(x: Tensor) -> Tensor:
    positive = x.sum() > 0
    a = x * 2
    if positive:
        a = a + 1
    b = a.sigmoid()
    if positive:
        b = b * a
    return b


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def predicate_computed_in_arm(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        p = y.sum() > 0
        h = x * y
    else:
        p = y.sum() < 0
        h = x + y
    if p:
        h = h - x
    return h
