"""Aliases of intermediates, and writes before and after the join that would show through an alias."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.inputs import B, InputSets, signs
from ..support.program import WHERE, Family, keep

FAMILY = Family("alias_writes")
ONE = signs((B, 4))
ALIAS = keep("alias")


@FAMILY.program(ONE, WHERE, grad=True)
def intermediate_returned_once(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h = h.clamp(max=1)
    return h


@FAMILY.program(ONE, WHERE, grad=True)
def view_of_intermediate_returned_once(x: Tensor) -> Tensor:
    h = x * 2
    return h.view(-1) if x.sum() > 0 else h.view(-1) * 3


@FAMILY.program(ONE, WHERE, grad=True)
def intermediate_returned_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    h = before = x * 2
    if x.sum() > 0:
        h = h.clamp(max=1)
    return before, h


@FAMILY.program(ONE, WHERE, grad=True)
def view_of_intermediate_returned_too(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    flat = h.view(-1)
    if x.sum() > 0:
        h = h.clamp(max=1)
    return flat, h


@FAMILY.program(ONE, WHERE, grad=True)
def intermediate_read_later(x: Tensor) -> Tensor:
    h = before = x * 2
    if x.sum() > 0:
        h = h.clamp(max=1)
    return h * before


@FAMILY.program(ONE, ALIAS)
def intermediate_written_later(x: Tensor) -> Tensor:
    h = before = x * 2
    if x.sum() > 0:
        h = h.clamp(max=1)
    h.add_(1)
    return h * before


@FAMILY.program(ONE, WHERE | ALIAS, grad=True)
def written_later_but_dropped(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h = h.clamp(max=1)
    h.add_(1)
    return h


@FAMILY.program(ONE, ALIAS)
def view_sees_later_write(x: Tensor) -> Tensor:
    h = x * 2
    flat = h.view(-1)
    if x.sum() > 0:
        h = h.clamp(max=1)
    h.mul_(3)
    return flat + 0


@FAMILY.program(ONE, ALIAS)
def input_written_later(x: Tensor) -> Tensor:
    # The caller's tensor changes, or not.
    if x.sum() > 0:
        x = x * 2
    x.add_(1)
    return x.sum()


@FAMILY.program(ONE, ALIAS)
def view_of_input_written_later(x: Tensor) -> Tensor:
    flat = x.view(-1)
    if x.sum() > 0:
        flat = flat * 2
    flat[0] = 9.0
    return flat.sum()


@FAMILY.program(ONE, ALIAS)
def source_written_after_the_choice(x: Tensor) -> Tensor:
    # When y is x, the later write shows through it.
    y = x if x.sum() > 0 else x * 2
    x.add_(1)
    return y * 1


@FAMILY.program(ONE, ALIAS)
def intermediate_source_written_after(x: Tensor) -> Tensor:
    h = x * 2
    y = h if x.sum() > 0 else h * 3
    h.add_(1)
    return y + h


@FAMILY.program(ONE, ALIAS)
def view_source_written_after(x: Tensor) -> Tensor:
    h = x * 2
    y = h[0] if x.sum() > 0 else h[1] * 3
    h.zero_()
    return y + 1


@FAMILY.program(ONE, WHERE)
def fresh_result_then_input_written(x: Tensor) -> Tensor:
    y = x * 2 if x.sum() > 0 else x * 3
    x.add_(1)
    return y


@FAMILY.program(ONE, WHERE)
def input_written_before(x: Tensor) -> Tensor:
    x.mul_(2)
    return x * 2 if x.sum() > 0 else x * 3


@FAMILY.program(ONE, WHERE, grad=True)
def fresh_result_written_later(x: Tensor) -> Tensor:
    y = x * 2 if x.sum() > 0 else x * 3
    y.add_(1)
    y[0] = 0
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def result_returned_with_its_view(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2 if x.sum() > 0 else x * 3
    return y, y.view(-1), y


@FAMILY.program(ONE, WHERE, state=lambda module: module.last)
class IntermediateRemembered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        self.last = h
        if x.sum() > 0:
            h = h.clamp(max=1)
        return h


@FAMILY.program(ONE, WHERE, grad=True)
def collected_before_and_after(x: Tensor) -> list[Tensor]:
    states = []
    h = x * 2
    states.append(h)
    if x.sum() > 0:
        h = h.clamp(max=1)
    states.append(h)
    return states


@FAMILY.program(ONE, WHERE, grad=True)
def collected_after_each_step(x: Tensor) -> tuple[Tensor, ...]:
    states: tuple[Tensor, ...] = ()
    h = x
    for _ in range(3):
        h = h * 1.5
        if h.sum() > 0:
            h = h.clamp(max=2)
        states = (*states, h)
    return states


def overlapping(seed: int) -> InputSets:
    sets: InputSets = []
    for sign in (1.0, -1.0):
        base = torch.arange(1.0, 7.0) * sign
        sets.append((base, base[2:]))
    return sets


@FAMILY.program(overlapping, WHERE)
def inputs_share_storage(x: Tensor, tail: Tensor) -> Tensor:
    y = x[2:] * tail if x.sum() > 0 else x[2:] - tail
    tail.add_(1)
    return y + x[2:]


@FAMILY.program(overlapping, ALIAS)
def result_overlaps_other_input(x: Tensor, tail: Tensor) -> Tensor:
    y = x[:4] if x.sum() > 0 else x[:4] * 2
    tail.mul_(10)
    return y + 0


def same_twice(seed: int) -> InputSets:
    pairs = [torch.tensor([1.0, 2.0]), torch.tensor([-1.0, -2.0])]
    return [(pair, pair) for pair in pairs]


@FAMILY.program(same_twice, WHERE)
def same_input_twice(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 + y if x.sum() > 0 else y * 3 - x
