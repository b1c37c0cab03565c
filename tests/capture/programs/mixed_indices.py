"""Masked stores and updates through an index that has integers and slices beside the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..support.inputs import InputSets, cases
from ..support.program import DROP, WHERE, Family, cond, keep

FAMILY = Family("mixed_indices")
# What is written in place may be gated where gradients are wanted.
EITHER = DROP | WHERE
OTHERWISE = keep("untraceable") | keep("side_effect") | cond("partial_op")


def masked(size: int) -> Callable[[int], InputSets]:
    """A tensor of shape (3, 4, 5) and a mask of one dimension: some, no and all elements."""

    def build() -> InputSets:
        x = torch.linspace(-2, 2, 60).reshape(3, 4, 5)
        some = torch.arange(size) % 2 == 1
        return [(x.clone(), m) for m in (some, some & False, some | True)]

    return cases(build)


def matrix(seed: int) -> InputSets:
    """The same with a mask of two dimensions, (4, 5)."""
    x = torch.linspace(-2, 2, 60).reshape(3, 4, 5)
    some = torch.arange(20).reshape(4, 5) % 3 == 1
    return [(x.clone(), m) for m in (some, some & False, some | True)]


def _set(index: Callable[[Tensor], Any], value: Any = 9.0) -> Callable[[Tensor, Tensor], None]:
    def store(h: Tensor, m: Tensor) -> None:
        h[index(m)] = value

    return store


def _add(index: Callable[[Tensor], Any]) -> Callable[[Tensor, Tensor], None]:
    def store(h: Tensor, m: Tensor) -> None:
        h[index(m)] += 1.5

    return store


INDICES: dict[str, tuple[int, Callable[[Tensor], Any]]] = {
    "integer_first": (4, lambda m: (0, m)),
    "integer_from_the_end": (4, lambda m: (-1, m)),
    "integer_behind": (3, lambda m: (m, 2)),
    "integers_around": (4, lambda m: (1, m, -2)),
    "slice_first": (4, lambda m: (slice(1, 3), m)),
    "slice_with_step": (4, lambda m: (slice(None, None, 2), m)),
    "slice_behind": (4, lambda m: (slice(None), m, slice(1, -1))),
    "integer_and_whole": (5, lambda m: (0, slice(None), m)),
    "ellipsis_and_integer": (4, lambda m: (..., m, 3)),
    "integer_and_ellipsis": (5, lambda m: (2, ..., m)),
    "nothing_selected": (4, lambda m: (slice(2, 2), m)),
}


def program(store: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor, Tensor], Tensor]:
    def written(x: Tensor, mask: Tensor) -> Tensor:
        h = x * 2
        if mask.any():
            store(h, mask)
        return h + 1

    return written


for name, (size, index) in INDICES.items():
    for kind, store in (("stored", _set(index)), ("added", _add(index))):
        FAMILY.add(
            f"{kind}_{name}",
            lambda store=store: program(store),
            masked(size),
            DROP,
            expect_grad=(EITHER,),
            grad=True,
            tags="contexts inductor" if name == "integer_first" else "",
        )


@FAMILY.program(matrix, DROP, expect_grad=(EITHER,), grad=True)
def two_dimensions(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[1, mask] = 0.5
    return h


@FAMILY.program(matrix, DROP)
def an_argument(x: Tensor, mask: Tensor) -> Tensor:
    if mask.any():
        x[1:, mask] *= 2
    return x + 1


@FAMILY.program(masked(4), WHERE, grad=True)
def on_both_sides(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.sum() > 2:
        h[0, mask] = 1.0
    else:
        h[1, mask] = 2.0
    return h


@FAMILY.program(masked(4), WHERE, grad=True)
def another_mask(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[0, ~mask] = 9.0
    return h


# The near misses: what the index selects is not one mask's elements, or the source counts them.


@FAMILY.program(masked(4), OTHERWISE)
def as_many_as_selected(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[0, mask] = h[1, mask].flip(0) + 1
    return h


@FAMILY.program(masked(3), OTHERWISE)
def two_masks(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[mask, 0, mask.repeat(2)[:5]] = 9.0
    return h


@FAMILY.program(masked(3), OTHERWISE)
def mask_and_list(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.sum() == 1:
        h[mask, [1]] = 9.0
    return h


@FAMILY.program(masked(4), OTHERWISE)
def new_dimension(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[0, None, mask] = torch.ones(5) * h.sum()
    return h
