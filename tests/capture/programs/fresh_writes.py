"""In-place operations in an arm on tensors that the arm itself has made: nobody else can see them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import WHERE, Family, cond

FAMILY = Family("fresh_writes")
ONE = signs((B, 4))


@FAMILY.program(ONE, WHERE, grad=True, tags="inductor contexts")
def both_arms_write_their_own(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
        y.add_(1)
    else:
        y = x * 3
        y.sub_(2)
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def one_arm_writes(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x.sin()
        y += 1
        y *= 2
    else:
        y = x.cos()
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def clone_then_write(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x.clone()
        y.clamp_(min=0)
    else:
        y = x - 1
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def set_item_on_clone(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x.clone()
        y[0] = 0
        y[:, 1] = x[:, 2]
    else:
        y = x * 2
    return y


@FAMILY.program(ONE, WHERE)
def filled_buffer(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = torch.ones_like(x)
        y.fill_(2)
    else:
        y = torch.zeros_like(x)
        y.copy_(x)
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def filled_rows(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = torch.zeros(2, 4)
        y[0] = x[0] * 2
        y[1] = x[1]
    else:
        y = torch.ones(2, 4)
        y[1] = x[0] - x[1]
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def write_through_view_of_fresh(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
        y.view(-1)[1:3].mul_(5)
    else:
        y = x * 3
        y.t().add_(1)
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def relu_in_place_on_fresh(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h = F.relu(h + 1, inplace=True)
    else:
        h = F.elu(h - 1, inplace=True)
    return h


@FAMILY.program(ONE, WHERE, grad=True)
class InPlaceActivationAfterLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.act(self.proj(x))
        return self.proj(x) * 2


@FAMILY.program(ONE, WHERE, grad=True)
def masked_fill_in_place_on_fresh(x: Tensor) -> Tensor:
    scores = x * 2
    if x.sum() > 0:
        scores = scores.clone().masked_fill_(x < 0, -1e4)
    return scores.softmax(-1)


@FAMILY.program(ONE, WHERE, grad=True)
def accumulates_in_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        total = torch.zeros(4)
        for row in (x[0], x[1]):
            total += row
    else:
        total = x.sum(0)
    return total


@FAMILY.program(ONE, WHERE)
def out_argument_on_fresh(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = torch.zeros(x.shape)
        torch.mul(x, 2, out=y)
    else:
        y = x - 2
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def write_in_nested_arm(x: Tensor) -> Tensor:
    def bump(h: Tensor) -> Tensor:
        h = h * 2
        return h.add_(3)

    return bump(x) if x.sum() > 0 else bump(-x)


@FAMILY.program(ONE, WHERE | cond("partial_op"))
def index_put_on_fresh(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x.clone()
        y[x > 1] = 0.0  # a mask of x's own shape cannot be out of range
    else:
        y = x * 2
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def write_after_read(x: Tensor) -> Tensor:
    if x.sum() > 0:
        a = x * 2
        b = a + 1
        a.mul_(4)
        y = a - b
    else:
        y = x
        y = y * 9
    return y
