"""Arms that write something that existed before: tensors, containers, attributes, globals."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import WHERE, Family, keep

FAMILY = Family("side_effects")
ONE = signs((B, 4))
TWO = signs((B, 4), (B, 4))


@FAMILY.program(ONE, WHERE, tags="contexts")
def add_to_input(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x.add_(1)
    return x * 2


@FAMILY.program(ONE, WHERE)
def augmented_assignment_to_input(x: Tensor) -> Tensor:
    # On tensors += writes in place.
    if x.sum() > 0:
        x *= 2
    return x + 1


@FAMILY.program(ONE, WHERE, grad=True, tags="inductor")
def add_to_intermediate(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h.add_(1)
    else:
        h.mul_(3)
    return h


@FAMILY.program(ONE, WHERE, grad=True)
def augmented_assignment_to_intermediate(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h += 1
    return h.sin()


@FAMILY.program(ONE, WHERE)
def set_item(x: Tensor) -> Tensor:
    h = x + 0
    if x.sum() > 0:
        h[0] = 5.0
    return h


@FAMILY.program(ONE, WHERE)
def set_slice_of_input(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x[:, 1:3] = 0
    return x.sum()


@FAMILY.program(ONE, WHERE)
def write_through_a_view(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        flat = h.view(-1)
        flat.zero_()
    return h


@FAMILY.program(ONE, keep("alias"))
def write_through_contiguous(x: Tensor) -> Tensor:
    # x is contiguous already, so this is x.
    if x.sum() > 0:
        y = x.contiguous()
        y.add_(1)
    else:
        y = x * 2
    return y.sum() + x.sum()


@FAMILY.program(ONE, keep("alias"))
def write_through_to_same_dtype(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x.to(torch.float32).mul_(2)
    else:
        y = x * 3
    return y.sum() * x.sum()


@FAMILY.program(ONE, WHERE)
def write_through_reshape(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x.reshape(-1)[0] = 7
    return x + 1


@FAMILY.program(ONE, WHERE | keep("alias"))  # torch 2.15 hands the input on
def write_through_eval_dropout(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = F.dropout(x, 0.5, training=False).neg_()
    else:
        y = x * 3
    return y + x


@FAMILY.program(ONE, WHERE)
def write_through_unpacked_rows(x: Tensor) -> Tensor:
    first, second = x[0], x[1]
    if x.sum() > 0:
        first.copy_(second)
    return x * 1


@FAMILY.program(ONE, WHERE)
def relu_in_place(x: Tensor) -> Tensor:
    h = x - 0.5
    if x.sum() > 0:
        F.relu(h, inplace=True)
    return h


@FAMILY.program(TWO, WHERE)
def out_argument(x: Tensor, buffer: Tensor) -> Tensor:
    if x.sum() > 0:
        torch.add(x, 1, out=buffer)
    return buffer * 2


@FAMILY.program(TWO, WHERE)
def copy_into_other_input(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        y.copy_(x)
    else:
        y.fill_(2)
    return x + y


@FAMILY.program(ONE, WHERE)
def index_fill_in_place(x: Tensor) -> Tensor:
    h = x.clone()
    if x.sum() > 0:
        h.masked_fill_(h > 0, 0)
    return h


@FAMILY.program(ONE, WHERE)
class BufferUpdatedInPlace(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.seen.add_(x.mean(0))
        return x - self.seen


@FAMILY.program(ONE, WHERE)
class BufferRebound(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.scale = self.scale * 2
        return x * self.scale


@FAMILY.program(signs((4, 3, 2, 2)), WHERE)
class BatchNormInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.norm(x)
        return x * 2


@FAMILY.program(ONE, WHERE)
class InPlaceActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = x - 0.25
        if x.sum() > 0:
            h = self.act(h)
        return h


def fill_first(h: Tensor) -> None:
    h[0].fill_(3)


@FAMILY.program(ONE, WHERE)
def written_by_a_helper(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        fill_first(h)
    return h


@FAMILY.program(ONE, WHERE)
def moving_average(x: Tensor) -> Tensor:
    average = torch.zeros(4)
    if x.sum() > 0:
        average.mul_(0.9).add_(x.mean(0), alpha=0.1)
    else:
        average.copy_(x.mean(0))
    return average


@FAMILY.program(ONE, WHERE)
def written_then_returned_early(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x.zero_()
        return x + 1
    return x * 3
