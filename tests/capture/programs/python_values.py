"""Arms that leave other Python values, or bind a name in one of them only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import FREE, WHERE, Family, keep

FAMILY = Family("python_values")
ONE = signs((B, 4))
TWO = signs((B, 4), (B, 4), flips=2)
UNBOUND = keep("unbound")


# name: what the two arms leave; all of it is returned, so all of it is needed.
LEFT: dict[str, tuple[Any, Any]] = {
    "integers": (1, 2),
    "strings": ("a", "b"),
    "floats": (0.5, 0.25),
    "none_or_integer": (None, 0),
    "true_or_false": (True, False),
    "integer_or_bool": (1, True),
    "integer_or_float": (1, 1.0),
    "signed_zeros": (0.0, -0.0),
    "dtypes": (torch.float16, torch.float32),
    "tuples": ((1, 2), (1, 3)),
    "tuple_or_list_of_numbers": ((1, 2), [1, 2]),
    "ranges": (range(2), range(3)),
    "empty_tuple_or_none": ((), None),
}


def leaving(name: str) -> Callable[[Tensor], Any]:
    one, other = LEFT[name]

    def run(x: Tensor) -> tuple[Tensor, Any]:
        if x.sum() > 0:
            y, value = x * 2, one
        else:
            y, value = x * 3, other
        return y, value

    return run


for name in LEFT:
    FAMILY.add(name, lambda name=name: leaving(name), ONE, WHERE)


@FAMILY.program(ONE, WHERE, grad=True)
def scale_used_later(x: Tensor) -> Tensor:
    if x.sum() > 0:
        scale = 2.0
    else:
        scale = 3.0
    return x * scale


@FAMILY.program(ONE, WHERE)
def dimension_used_later(x: Tensor) -> Tensor:
    dim = 0 if x.sum() > 0 else 1
    return x.sum(dim)


@FAMILY.program(ONE, WHERE, grad=True)
def tensor_or_number(x: Tensor) -> Tensor:
    shift = x.mean() if x.sum() > 0 else 0.0
    return x + shift


@FAMILY.program(ONE, WHERE, grad=True)
def tensor_or_none(x: Tensor) -> Tensor:
    mask = None
    if x.sum() > 0:
        mask = x > 1
    return x * 2 if mask is None else x.masked_fill(mask, 0)


@FAMILY.program(ONE, WHERE)
def mask_dropped(x: Tensor) -> Tensor:
    # attention_mask = None where nothing is masked
    mask = x > -100
    if mask.all() & (x.sum() > 0):
        mask = None
    return x.softmax(-1) if mask is None else x.masked_fill(~mask, -9.0).softmax(-1)


@FAMILY.program(ONE, WHERE)
def function_chosen(x: Tensor) -> Tensor:
    act = F.relu if x.sum() > 0 else F.gelu
    return act(x)


@FAMILY.program(ONE, WHERE)
class ModuleChosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.a if x.sum() > 0 else self.b
        return layer(x)


@FAMILY.program(ONE, WHERE)
def counter(x: Tensor) -> tuple[Tensor, int]:
    steps = 0
    for _ in range(2):
        x = x * 2
        if x.sum() > 0:
            steps = steps + 1
    return x, steps


@FAMILY.program(ONE, WHERE)
def shape_left(x: Tensor) -> Tensor:
    if x.sum() > 0:
        shape = x.shape
    else:
        shape = x.t().shape
    return x.reshape(shape) + 1


@FAMILY.program(ONE, WHERE)
def flag_tested_later(x: Tensor) -> Tensor:
    if x.sum() > 0:
        found = True
    else:
        found = False
    y = x * 2
    if found:
        y = y + 1
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def value_nobody_needs(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y, _scale = x * 2, 2
    else:
        y, _scale = x * 3, 3
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def value_used_inside_the_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        scale = 2
        y = x * scale
    else:
        scale = 3
        y = x + scale
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def value_overwritten(x: Tensor) -> tuple[Tensor, int]:
    if x.sum() > 0:
        y, scale = x * 2, 2
    else:
        y, scale = x * 3, 3
    scale = 7
    return y * scale, scale


@FAMILY.program(ONE, WHERE, grad=True)
def tensor_or_number_nobody_needs(x: Tensor) -> Tensor:
    if x.sum() > 0:
        temp = x.sum()
        y = x * temp
    else:
        temp = 3
        y = x + temp
    return y


@FAMILY.program(ONE, UNBOUND)
def bound_in_one_arm_then_read(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
    return y + 1  # raises UnboundLocalError where the arm is not taken


@FAMILY.program(ONE, UNBOUND)
def number_bound_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        scale = 2
    return x * scale


@FAMILY.program(ONE, UNBOUND | keep("untraceable"))
def bound_in_else(x: Tensor) -> Tensor:
    if x.sum() > 0:
        pass
    else:
        y = x.sin()
    return y


@FAMILY.program(ONE, UNBOUND, FREE)
def bound_and_read_under_equal_tests(x: Tensor) -> Tensor:
    # Correct in eager: the name is read only where it was bound.
    positive = x.sum() > 0
    if positive:
        extra = x * 2
    y = x + 1
    if positive:
        y = y + extra
    return y


@FAMILY.program(ONE, UNBOUND)
def deleted_in_one_arm(x: Tensor) -> Tensor:
    temp = x * 2
    y = temp + 1
    if x.sum() > 0:
        del temp
    return y + temp


@FAMILY.program(ONE, WHERE, grad=True)
def bound_in_one_arm_unused_later(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        extra = h.sin()
        h = h + extra
    return h


@FAMILY.program(ONE, WHERE, grad=True)
def bound_in_one_arm_then_overwritten(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        extra = h.sin()
        h = h + extra
    extra = h * 3
    return extra


@FAMILY.program(ONE, WHERE, grad=True)
def deleted_in_both_arms(x: Tensor) -> Tensor:
    temp = x * 2
    if x.sum() > 0:
        y = temp + 1
        del temp
    else:
        y = temp - 1
        del temp
    return y


@FAMILY.program(TWO, UNBOUND, WHERE)
def unbound_then_capture(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        z = x * 2
    h = x * y if y.sum() > 0 else x + y
    return h + z
