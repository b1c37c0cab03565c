"""Guards around masked stores that cannot be left out, though they look much like those that can.

They ask about another mask, about the mask as it no longer is, or the arm does something else too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..support.inputs import InputSets, cases
from ..support.program import WHERE, Family, keep
from .masked_stores import MASKED, MIXED, with_masks

FAMILY = Family("masked_elsewhere")
INF = float("inf")


# Other questions: a mask that is not empty says nothing, nor does one that is not full.
OTHER: dict[str, Callable[[Tensor], Any]] = {
    "all": lambda m: m.all(),
    "sum_above_one": lambda m: m.sum() > 1,
    "sum_not_one": lambda m: m.sum() != 2,
    "sum_below_three": lambda m: m.sum() < 3,
    "any_of_the_inverse": lambda m: (~m).any(),
    "any_of_a_row": lambda m: m[0].any(),
    "any_of_a_slice": lambda m: m[:, 2:].any(),
    "first_element": lambda m: m[0, 1],
    "any_beside_a_constant": lambda m: m.any() & (m.sum() < 3),
}


def asking_other(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    of = OTHER[name]

    def program(x: Tensor, mask: Tensor) -> Tensor:
        h = x * 2
        if of(mask):
            h[mask] = 7.0
        return h + 1

    return program


for name in OTHER:
    FAMILY.add(f"other_{name}", lambda name=name: asking_other(name), MASKED, WHERE, grad=True)


# What else an arm may do: the question stays.
MORE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "other_mask": lambda h, m: h.masked_fill(h > 4, 0.0),
    "inverse": lambda h, m: h.masked_fill(~m, 0.0),
    "or_something": lambda h, m: h.masked_fill(m | (h > 4), 0.0),
    "where_turned_round": lambda h, m: torch.where(m, h, 0.0),
    "and_an_addition": lambda h, m: h.masked_fill(m, 0.0) + 1,
    "of_another_tensor": lambda h, m: (h + 0).masked_fill(m, 0.0),
    "flipped": lambda h, m: h.masked_fill(m.flip(0) & (h > 0) | (h > 20), 0.0),
    "fill": lambda h, m: h.fill_(0.0),
    "first_row": lambda h, m: torch.cat([h[:1] * 0, h[1:]]),
}


def doing_more(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    store = MORE[name]

    def program(x: Tensor, mask: Tensor) -> Tensor:
        h = x * 2
        if mask.any():
            h = store(h, mask)
        return h + 1

    return program


for name in MORE:
    FAMILY.add(f"more_{name}", lambda name=name: doing_more(name), MASKED, WHERE, grad=True)


def flags() -> InputSets:
    mask, chosen = torch.tensor([False, False, True]), torch.tensor([True, False, True])
    return [(m, chosen.clone(), ~mask) for m in (mask, mask & False, mask | True)]


@FAMILY.program(cases(flags), WHERE)
def method_where_of_the_mask(mask: Tensor, chosen: Tensor, flags: Tensor) -> Tensor:
    # The mask is what is selected here, not what selects.
    if mask.any():
        flags = mask.where(chosen, flags)
    return flags.logical_not()


@FAMILY.program(cases(flags), WHERE)
def method_where_of_the_mask_copied(mask: Tensor, chosen: Tensor, flags: Tensor) -> Tensor:
    kept = flags.clone()
    if mask.any():
        kept.copy_(mask.where(chosen, kept))
    return kept.logical_not()


@FAMILY.program(MASKED, WHERE)
def smallest_of_a_mask(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.min():
        h[mask] = 7.0
    return h + 1


@FAMILY.program(MIXED, WHERE)
def only_one_of_two_masks_asked(x: Tensor) -> Tensor:
    big = x > 0
    if big.any():
        x = torch.where(big | x.isnan(), x.new_zeros(()), x)
    return x + 1


@FAMILY.program(MIXED, WHERE)
def inputs_rows_and_a_part_of_other_mask(x: Tensor) -> Tensor:
    rows = (x > 0).any(1)
    if rows.any():
        x[rows] = torch.tensor([1.0, 2.0, 3.0, 4.0])
        x[:, 1:][x[:, 1:] < 0] = 7.0
    return x + 1


@FAMILY.program(with_masks(shape=(2, 3, 4)), WHERE | keep("shape_mismatch"))
def mask_with_more_dimensions(x: Tensor, mask: Tensor) -> Tensor:
    # Not taken: x of shape (3, 4), which no selection with the mask gives.
    h = x * 2
    if mask.any():
        h = torch.where(mask, 0.0, h).sum(0)
    return h


@FAMILY.program(MASKED, WHERE)
def mask_inverted_in_between(x: Tensor, mask: Tensor) -> Tensor:
    found = mask.any()
    mask.logical_not_()
    if found:
        x[mask] = 0.0
    return x + 1


@FAMILY.program(MASKED, WHERE)
def part_of_mask_written_in_between(x: Tensor, mask: Tensor) -> Tensor:
    found = mask.any()
    mask[0, 0] = True
    h = x * 2
    if found:
        h = h.masked_fill(mask, 0.0)
    return h + 1


@FAMILY.program(MASKED, WHERE)
def mask_written_through_a_view(x: Tensor, mask: Tensor) -> Tensor:
    row = mask[2]
    h = x * 2
    found = mask.any()
    row.fill_(True)
    if found:
        h[mask] = 0.0
    return h + 1


@FAMILY.program(MASKED, WHERE)
def mask_written_in_the_arm(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        mask.logical_not_()
        h[mask] = 0.0
    return h + 1


@FAMILY.program(MIXED, WHERE)
def mask_of_what_was_written_in_between(x: Tensor) -> Tensor:
    h = x * 2
    found = (h > 0).any()
    h.sub_(0.75).neg_()
    if found:
        h[h > 0] = 0.0
    return h + 1


@FAMILY.program(MASKED, keep("alias"))
def else_arm_does_something(x: Tensor, mask: Tensor) -> Tensor:
    if mask.any():
        x[mask] = 0.0
    else:
        x = x + 1
    return (x + 1).sin() * 2  # long: Python 3.12 copies short endings into the arms


@FAMILY.program(MASKED, WHERE, grad=True)
def else_arm_of_its_own(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h = h.masked_fill(mask, 0.0)
    else:
        h = h - 1
    return h + 1


@FAMILY.program(MASKED, WHERE)
def also_a_store_to_something_else(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    h, seen = x * 2, x.new_zeros(())
    if mask.any():
        h[mask] = 0.0
        seen.add_(1)
    return h + 1, seen + 0


@FAMILY.program(MASKED, WHERE, grad=True)
def also_another_value(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    h, share = x * 2, x.sum()
    if mask.any():
        h = h.masked_fill(mask, 0.0)
        share = mask.float().mean() * share
    return h + 1, share


@FAMILY.program(MASKED, WHERE)
def store_of_another_dtype(x: Tensor, mask: Tensor) -> Tensor:
    h = x.long()
    if mask.any():
        h = torch.where(mask, 0.5, h)
    return h + 1
