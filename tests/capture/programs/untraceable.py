"""Arms with something that Dynamo cannot put into a graph."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.opaque import note
from ..support.program import WHERE, Family, keep

FAMILY = Family("untraceable")
ONE = signs((B, 4))
TWO = signs((B, 4), (B, 4), flips=2)
UNTRACEABLE = keep("untraceable")


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts inductor")
def prints(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("positive")
        y = x * 2
    else:
        y = x * 3
    return y


@FAMILY.program(ONE, WHERE)
def prints_a_tensor(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        print("sum", h.sum())
    return h + 1


@FAMILY.program(ONE, WHERE)
def both_print(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("yes")
    else:
        print("no")
    return x * 2


@FAMILY.program(TWO, WHERE, WHERE)
def print_in_nested_arm(x: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if x.sum() > 0:
        if y.sum() > 0:
            print("deep", h.mean())
        h = h * 2
    else:
        print("shallow")
    return h


@FAMILY.program(ONE, WHERE)
def prints_after_return(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    print("rest", x)
    return x * 3


@FAMILY.program(ONE, WHERE)
def item_in_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * x.max().item()
    else:
        y = x * 3
    return y


@FAMILY.program(ONE, WHERE)
def tolist_in_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * sum(x.sum(0).tolist())
    else:
        y = x * 3
    return y


@FAMILY.program(ONE, UNTRACEABLE)
def float_in_arm(x: Tensor) -> Tensor:
    return x * math.sqrt(float(x.sum())) if x.sum() > 0 else x * 3


@FAMILY.program(ONE, UNTRACEABLE)
def explicit_break_in_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
        torch._dynamo.graph_break()
        y = y + 1
    else:
        y = x * 3
    return y


@torch._dynamo.disable
def opaque(h: Tensor) -> Tensor:
    return h * 2


@FAMILY.program(ONE, UNTRACEABLE)
def disabled_function_in_arm(x: Tensor) -> Tensor:
    return opaque(x) if x.sum() > 0 else x * 3


@FAMILY.program(ONE, UNTRACEABLE)
def untraceable_rest_after_return(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    note("rest")
    return x * 3


@FAMILY.program(ONE, WHERE)
def prints_in_inner_helper(x: Tensor) -> Tensor:
    def note(h: Tensor) -> Tensor:
        print("note")
        return h * 2

    return note(x) if x.sum() > 0 else x * 3


@FAMILY.program(ONE, WHERE)
def attribute_and_print(x: Tensor) -> Tensor:
    box: dict[str, Any] = {}
    if x.sum() > 0:
        print("filling")
        box["y"] = x * 2
    else:
        box["y"] = x * 3
    return box["y"]


@FAMILY.program(ONE, WHERE)
def bool_call_in_test(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x * 2
    return x * 3


@FAMILY.program(ONE, extra=True)
def item_in_test(x: Tensor) -> Tensor:
    # No tensor is tested here: .item() makes it a Python number first.
    if x.sum().item() > 0:
        return x * 2
    return x * 3


@FAMILY.program(ONE, extra=True)
def float_in_test(x: Tensor) -> Tensor:
    return x * 2 if float(x.half().sum()) > 1e-8 else x * 3


@FAMILY.program(ONE, extra=True)
def torch_equal_in_test(x: Tensor) -> Tensor:
    return x * 2 if torch.equal(x, x.abs() + (x.sum() < 0) + 0 * x + (x - x.abs())) else x * 3


@FAMILY.program(TWO, WHERE, UNTRACEABLE)
class CaptureThenNote(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = x.sin() if x.sum() > 0 else x.cos()
        if y.sum() > 0:
            note("second")
        return h + y


@FAMILY.program(TWO, UNTRACEABLE, UNTRACEABLE)
def note_in_nested_arm(x: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if x.sum() > 0:
        if y.sum() > 0:
            note("deep")
        h = h * 2
    return h
