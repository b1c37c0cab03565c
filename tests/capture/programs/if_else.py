"""if, else, elif and nesting in the function that is compiled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.inputs import B, rows, signs
from ..support.program import WHERE, Family

FAMILY = Family("if_else")
BATCH = signs((B, 4))
PAIR = signs((B, 4), (B, 4), flips=2)


@FAMILY.program(BATCH, WHERE, grad=True, tags="inductor contexts")
def both_arms(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
    else:
        y = x - 1
    return y


@FAMILY.program(BATCH, WHERE, grad=True, tags="inductor contexts")
def no_else_on_intermediate(x: Tensor) -> Tensor:
    h = x * 3
    if x.sum() > 0:
        h = torch.tanh(h)
    return h


@FAMILY.program(BATCH, WHERE, grad=True, tags="contexts")
def empty_then(x: Tensor) -> Tensor:
    h = x.exp()
    if x.mean() > 0:
        pass
    else:
        h = h + 1
    return h


@FAMILY.program(BATCH, WHERE, grad=True)
def no_op_branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        pass
    return x * 2


@FAMILY.program(BATCH, WHERE, grad=True)
def dead_result(x: Tensor) -> Tensor:
    if x.sum() > 0:
        unused = x * 2
    else:
        unused = x + 1
    unused = x - 5
    return unused


@FAMILY.program(
    rows([1.0, 2.0], [0.5, -0.5], [-1.0, -2.0]), WHERE, WHERE, grad=True, tags="inductor contexts"
)
def elif_three_ways(x: Tensor) -> Tensor:
    if x.sum() > 2:
        y = x.sin()
    elif x.sum() > -2:
        y = x.cos()
    else:
        y = x.exp()
    return y


@FAMILY.program(signs((B, 4), (), flips=2), WHERE, WHERE, grad=True, tags="inductor")
def elif_on_another_tensor(x: Tensor, t: Tensor) -> Tensor:
    if t > 0:
        y = x * t
    elif x.sum() > 0:
        y = x + t
    else:
        y = x / (t - 10)
    return y


@FAMILY.program(signs((4,), (), (), flips=3), WHERE, WHERE, WHERE, grad=True)
def elif_four_ways(x: Tensor, s: Tensor, t: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * s * t
    elif s > 0:
        y = x * s - t
    elif t > 0:
        y = x + s * t
    else:
        y = x - s - t
    return y


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def elif_without_else(x: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if x.sum() > 0:
        h = h * 2
    elif y.sum() > 0:
        h = h * 3
    return h


@FAMILY.program(PAIR, WHERE, WHERE, grad=True, tags="inductor contexts")
def nested_in_then(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        if y.sum() > 0:
            z = x + y
        else:
            z = x - y
    else:
        z = x * y
    return z


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def nested_in_else(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        z = x * y
    else:
        z = x.sigmoid()
        if y.sum() > 0:
            z = z + 1
        z = z * y
    return z


@FAMILY.program(PAIR, WHERE, WHERE, WHERE, grad=True, tags="contexts")
def nested_in_both(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        z = x + y if y.sum() > 0 else x - y
    else:
        z = x * y if y.mean() > 0 else y / 3 + x
    return z


@FAMILY.program(signs((4,), (4,), (4,), flips=3), WHERE, WHERE, WHERE, grad=True)
def nested_three_deep(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    out = x + y + z
    if x.sum() > 0:
        if y.sum() > 0:
            if z.sum() > 0:
                out = out * x
            out = out + y
        out = out - z
    return out


@FAMILY.program(PAIR, WHERE, WHERE, grad=True, tags="inductor contexts")
def two_in_a_row(x: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if x.sum() > 0:
        h = h.relu()
    if y.sum() > 0:
        h = h - 1
    return h


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def second_tests_result_of_first(x: Tensor, y: Tensor) -> Tensor:
    h = x - y if x.sum() > 0 else x * 0 - y * y
    if h.sum() > 0:
        h = h * 5
    return h


@FAMILY.program(BATCH, WHERE, WHERE, WHERE, WHERE, WHERE, grad=True)
def five_in_a_row(x: Tensor) -> Tensor:
    h = x * 1.5
    if x.sum() > 0:
        h = h + 1
    if x.mean() < 0:
        h = h * 2
    if x[0, 0] + x.sum() > 0:
        h = h - x
    if x.sum() * 2 > 1:
        h = h.sin()
    if not x.sum() > 0:
        h = h.cos()
    return h


@FAMILY.program(signs((B, 4), (4, 4)), WHERE, grad=True, tags="inductor contexts")
def matmul_arms(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x @ w
    else:
        y = x @ w.t()
    return y


@FAMILY.program(signs((B, 4), (5, 4), (5,)), WHERE, grad=True, tags="inductor contexts")
def linear_arms(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    if x.sum() > 0:
        y = F.gelu(F.linear(x, w, b))
    else:
        y = F.relu(F.linear(x, w, b) - 1)
    return y


@FAMILY.program(BATCH, WHERE, grad=True)
def same_expression_in_both(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
    else:
        y = x * 2
    return y + 1
