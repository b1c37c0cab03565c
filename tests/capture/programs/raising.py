"""Arms that raise, and assertions on tensors: the exception must be eager's, type and text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import FREE, SINK, WHERE, Family, keep

FAMILY = Family("raising")
ONE = signs((B, 4))
TWO = signs((B, 4), (B, 4), flips=2)
RAISES = keep("raises")


@FAMILY.program(ONE, SINK, grad=True, tags="contexts")
def raise_value_error(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("the sum must not be negative")
    return x * 2


@FAMILY.program(ONE, SINK)
def raise_with_formatted_text(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"bad input of shape {tuple(x.shape)} and dtype {x.dtype}")
    return x * 2


@FAMILY.program(ONE, SINK)
def raise_after_work(x: Tensor) -> Tensor:
    h = x * 2
    if h.sum() < 0:
        h = h + 1
        raise RuntimeError("late")
    return h


@FAMILY.program(ONE, SINK)
def raise_without_arguments(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise KeyError
    return x * 2


class Unstable(ArithmeticError):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is unstable")


@FAMILY.program(ONE, SINK)
def raise_own_class(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise Unstable("x")
    return x * 2


@FAMILY.program(ONE, SINK)
def raise_in_else(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
    else:
        raise ValueError("else")
    return y


@FAMILY.program(ONE, RAISES)
def raise_in_both(x: Tensor) -> Tensor:
    if x.sum() > 0:
        raise ValueError("positive")
    raise TypeError("negative")


@FAMILY.program(ONE, SINK)
def raise_after_input_was_written(x: Tensor) -> Tensor:
    x.add_(0.01)
    if x.mean() < 0:
        raise ValueError("after the write")
    x.mul_(2)
    return x + 1


@FAMILY.program(ONE, SINK)
def bare_assertion(x: Tensor) -> Tensor:
    assert x.sum() > 0
    return x * 2


@FAMILY.program(ONE, SINK)
def assertion_with_text(x: Tensor) -> Tensor:
    assert x.sum() > 0, "must be positive"
    return x * 2


@FAMILY.program(ONE, SINK)
def assertion_with_formatted_text(x: Tensor) -> Tensor:
    assert x.sum() > 0, f"must be positive, shape {tuple(x.shape)}"
    return x * 2


@FAMILY.program(TWO, SINK)
def assertion_of_two(x: Tensor, y: Tensor) -> Tensor:
    assert x.sum() > 0 and not (y.sum() < 0)  # noqa: PT018  # one line is the program
    return x * y


@FAMILY.program(TWO, SINK, WHERE)
def check_then_branch(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("x")
    return x * y if y.sum() > 0 else x + y


def checked(h: Tensor) -> Tensor:
    if h.sum() < 0:
        raise ValueError("from a helper")
    return h * 2


@FAMILY.program(ONE, SINK)
def raise_in_helper(x: Tensor) -> Tensor:
    return checked(x + 1e-3) * 3


@FAMILY.program(ONE, FREE)
def caught_in_the_same_function(x: Tensor) -> Tensor:
    try:
        if x.sum() < 0:
            raise ValueError("caught")
        y = x * 2
    except ValueError:
        y = x * 3
    return y


@FAMILY.program(ONE, WHERE | FREE, grad=True)
def branch_inside_try(x: Tensor) -> Tensor:
    try:
        y = x * 2 if x.sum() > 0 else x * 3
    except ZeroDivisionError:
        y = x
    return y + 1


@FAMILY.program(ONE, FREE)
def branch_inside_finally(x: Tensor) -> Tensor:
    try:
        y = x + 1
    finally:
        z = x * 2 if x.sum() > 0 else x * 3
    return y + z


@FAMILY.program(ONE, SINK)
class LabelsInRange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        labels = x.long()
        if labels.sum() < 0:
            raise IndexError("label out of range")
        return torch.nn.functional.softmax(x, -1) * labels


@FAMILY.program(TWO, WHERE, SINK)
def raise_in_nested_arm(x: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if x.sum() > 0:
        if y.sum() < 0:
            raise ValueError("nested")
        h = h * 2
    return h
