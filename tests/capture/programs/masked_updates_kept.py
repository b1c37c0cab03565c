"""What depends on how many elements a mask selects, or where they lie: no update of each element."""

from __future__ import annotations

import torch
from torch import Tensor

from ..support.program import DROP, Family, keep
from .masked_updates import KEPT, MASKED, masks, update

FAMILY = Family("masked_updates_kept")


@update(MASKED, KEPT, grad=True, family=FAMILY)
def other_mask(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = h[m.flip(0).flip(0) & m] + 1
    return h


@FAMILY.program(MASKED, KEPT, grad=True, frozen=(2,))
def mask_written_in_between(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h, half = x * 2 + y, torch.zeros_like(mask)
    half[:, ::2] = mask[:, ::2]
    if mask.any():
        part = h[half]
        half.copy_(half.flip(0).flip(0))
        h[half] = part
    return h


@update(MASKED, KEPT, grad=True, family=FAMILY)
def turned_around(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = h[m].flip(0) + 1
    return h


@update(MASKED, KEPT, grad=True, family=FAMILY)
def summed_up(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = h[m].cumsum(0)
    return h


@update(MASKED, KEPT, grad=True, family=FAMILY)
def rounded_by_place(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    # On some CPUs sigmoid rounds otherwise at the end of a vector.
    h[m] = h[m].sigmoid()
    return h


@update(MASKED, KEPT, grad=True, family=FAMILY)
def size_used(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] /= h[m].numel()
    return h


@update(MASKED, KEPT | keep("alias"), grad=True, family=FAMILY)
def selection_used_too(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    part = h[m] * 2
    h[m] = part
    return h + part.sum()


@update(MASKED, KEPT, grad=True, family=FAMILY)
def copy_written_only(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m].add_(1)
    h[m][:1] = 3.0
    return h * 2


@update(MASKED, KEPT, grad=True, family=FAMILY)
def first_elements(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = h[m] * y.flatten()[: h[m].shape[0]]
    return h


@update(MASKED, KEPT, grad=True, family=FAMILY)
def random_numbers(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] += torch.randn_like(h[m])
    return h


@update(masks(torch.int64), KEPT, family=FAMILY)
def divided_integers(h: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h[m] = h[m] // (y[m] * 0 + 3)
    return h


@FAMILY.program(MASKED, DROP, expect_grad=(KEPT,), grad=True)
def gradient_of_a_scalar(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    # A sum over the selected elements, which rounds in their order.
    h = x * v + y
    if mask.any():
        h[mask] *= v
    return h


@FAMILY.program(MASKED, KEPT | keep("shape_mismatch"), grad=True, frozen=(2,))
def selection_left(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    h = x + y
    part = h
    if mask.any():
        part = h[mask]
        h[mask] = part * 2
    return h, part * 2


@FAMILY.program(MASKED, KEPT, grad=True, frozen=(2,))
def selected(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if mask.any():
        h = h[mask]
    return h * 2


@FAMILY.program(MASKED, KEPT | keep("python_value"), grad=True, frozen=(2,))
def count_left_by_both(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if mask.sum() > 12:
        part = h[mask]
        count = part.shape[0]
        h[mask] = part * 2
    else:
        part = h[mask]
        count = part.shape[0]
        h[mask] = part * 3
    return h * count


@FAMILY.program(MASKED, KEPT, grad=True, frozen=(2,))
def places(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if mask.any():
        h = h + mask.nonzero().sum()
    return h


@FAMILY.program(MASKED, KEPT | keep("partial_op"), grad=True, frozen=(2,))
def index_of_the_selection(x: Tensor, mask: Tensor, v: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if mask.any():
        at = mask.nonzero()
        h[at[:, 0], at[:, 1]] += 1
    return h
