"""Stores through a mask behind a question about that mask: the question can be left out.

Where no element of the mask is true the arm does nothing, so it may run always. The near misses are
in masked_elsewhere.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..support.inputs import InputSets, cases
from ..support.program import DROP, WHERE, Family, keep

FAMILY = Family("masked_stores")
NAN, INF = float("nan"), float("inf")
# A selection is right, too: what is written in place may be gated where gradients are wanted.
EITHER = DROP | WHERE


def mixed() -> InputSets:
    """No positive element, some, all; NaN, infinities and zeros of both signs."""
    some = torch.linspace(-1, 1, 12).reshape(3, 4)
    odd = some.clone()
    odd[0, 1], odd[1, 2], odd[2, 0], odd[2, 1] = NAN, INF, -INF, -0.0
    return [(x,) for x in (some, -some.abs() - 0.5, some.abs() + 0.5, odd, -odd.abs() * 0)]


MIXED = cases(mixed)


def with_masks(
    dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (3, 4)
) -> Callable[[int], InputSets]:
    """A tensor and a mask of which no, some, and all elements are true."""

    def build() -> InputSets:
        x = torch.arange(1, 13).reshape(3, 4).to(dtype)
        some = torch.zeros(shape, dtype=torch.bool)
        some.view(-1)[1:3] = True
        return [(x.clone(), mask) for mask in (some, some & False, some | True, some.clone())]

    return cases(build)


MASKED = with_masks()

# Every way to ask whether a mask has a true element, and one way to store.
ASKED: dict[str, Callable[[Tensor], Any]] = {
    "any": lambda m: m.any(),
    "torch_any": lambda m: torch.any(m),
    "sum_above_zero": lambda m: m.sum() > 0,
    "sum_not_zero": lambda m: m.sum() != 0,
    "sum_at_least_one": lambda m: m.sum() >= 1,
    "zero_below_sum": lambda m: 0 < m.sum(),
    "sum_of_integers": lambda m: m.sum(dtype=torch.int32) > 0,
    "count": lambda m: torch.count_nonzero(m) > 0,
    "maximum": lambda m: m.max(),
    "inverse_of_all": lambda m: ~(~m).all(),
    "logical_not_of_all": lambda m: torch.logical_not(torch.logical_not(m).all()),
    "of_a_copy": lambda m: m.clone().any(),
    "of_all_dimensions_kept": lambda m: m.any().reshape(1, 1),
    # Taken where the mask is empty, and then the store does nothing: it never does anything.
    "inverse_of_any": lambda m: ~m.any(),
    "of_itself_twice": lambda m: (m & m).any() | m.any(),
}


def asking(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    of = ASKED[name]

    def program(x: Tensor, mask: Tensor) -> Tensor:
        h = x * 2
        if of(mask):
            h[mask] = 7.0
        return h + 1

    return program


for name in ASKED:
    FAMILY.add(
        f"asked_{name}",
        lambda name=name: asking(name),
        MASKED,
        DROP,
        expect_grad=(EITHER,),
        grad=True,
    )


# Every way to store, behind one question. The tensor written is made in the graph.
def _set(index: Callable[[Tensor], Any], value: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def store(h: Tensor, m: Tensor) -> Tensor:
        h[index(m)] = value
        return h

    return store


STORED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "number": _set(lambda m: m, 3.5),
    "integer": _set(lambda m: m, 3),
    "nan": _set(lambda m: m, NAN),
    "tuple_index": _set(lambda m: (m,), -0.0),
    "ellipsis": _set(lambda m: (..., m), 1.0),
    "ellipsis_behind": _set(lambda m: (m, ...), 1.0),
    "masked_fill": lambda h, m: h.masked_fill(m, -INF),
    "masked_fill_in_place": lambda h, m: h.masked_fill_(m, -INF),
    "torch_masked_fill": lambda h, m: torch.masked_fill(h, m, 2.0),
    "where_number": lambda h, m: torch.where(m, 0.0, h),
    "where_inverse": lambda h, m: torch.where(~m, h, 5.0),
    "where_logical_not": lambda h, m: torch.where(torch.logical_not(m), h, 5.0),
    "twice": lambda h, m: h.masked_fill(m, 1.0).masked_fill(m, 2.0),
    "and_something": lambda h, m: h.masked_fill(m & (h > 4), 0.0),
    "expanded": lambda h, m: h.masked_fill(m.unsqueeze(0).expand(1, 3, 4)[0], 0.0),
    "copied_first": lambda h, m: h.clone().masked_fill_(m, 9.0),
}
IN_PLACE = set(list(STORED)[:6]) | {"masked_fill_in_place", "copied_first"}


def storing(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    store = STORED[name]

    def program(x: Tensor, mask: Tensor) -> Tensor:
        h = x * 2
        if mask.any():
            h = store(h, mask)
        return h + 1

    return program


for name in STORED:
    FAMILY.add(
        f"stored_{name}",
        lambda name=name: storing(name),
        MASKED,
        DROP,
        expect_grad=(EITHER if name in IN_PLACE else DROP,),
        grad=True,
        tags="inductor contexts" if name in {"number", "masked_fill", "where_inverse"} else "",
    )


for dtype, value in (
    (torch.float16, 2.5),
    (torch.bfloat16, -INF),
    (torch.float64, 1e300),
    (torch.int64, -(1 << 40)),
    (torch.uint8, 255),
    (torch.bool, True),
):

    def of_dtype(x: Tensor, mask: Tensor, value: Any = value) -> Tensor:
        h = x.clone()
        if mask.any():
            h[mask] = value
        return h

    FAMILY.add(f"dtype_{dtype}"[6:], lambda f=of_dtype: f, with_masks(dtype), DROP)


@FAMILY.program(MASKED, DROP, expect_grad=(EITHER,), grad=True)
def not_all_of_the_inverse(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if not (~mask).all():
        h[mask] = 7.0
    return h + 1


@FAMILY.program(MASKED, EITHER, grad=True)
def asked_of_a_view(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.view(-1).any():
        h[mask] = 7.0
    return h + 1


@FAMILY.program(MASKED, EITHER, grad=True)
def asked_of_a_transpose(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.t().any():
        h[mask] = 7.0
    return h + 1


@FAMILY.program(MASKED, EITHER, grad=True)
def method_where(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h = h.where(~mask, 5.0)
    return h + 1


@FAMILY.program(MIXED, DROP, expect_grad=(EITHER,), grad=True, tags="inductor contexts")
def mask_made_again(x: Tensor) -> Tensor:
    h = x * 2
    if (h > 0).any():
        h[h > 0] = 0.0
    return h


@FAMILY.program(MIXED, DROP, grad=True, tags="inductor")
def finite_or_zero(x: Tensor) -> Tensor:
    h = x * 2
    valid = ~h.isnan()
    if not valid.all():
        h = torch.where(valid, h, 0.0)
    return h + 1


@FAMILY.program(MIXED, DROP, grad=True)
def nan_counted(x: Tensor) -> Tensor:
    nan = x.isnan()
    h = x + 0
    if nan.sum() > 0:
        h = h.masked_fill(nan, 0.0)
    return h * 2


@FAMILY.program(MIXED, DROP)
def either_mask(x: Tensor) -> Tensor:
    big = x > 0
    if big.any() or x.isnan().any():
        x = torch.where(big | x.isnan(), x.new_zeros(()), x)
    return x + 1


@FAMILY.program(MIXED, DROP)
def inputs_rows(x: Tensor) -> Tensor:
    rows = (x > 0).any(1)
    if rows.any():
        x[rows] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return x + 1


@FAMILY.program(MASKED, DROP)
def input_itself(x: Tensor, mask: Tensor) -> Tensor:
    if mask.any():
        x[mask] = 0.0
    return x * 2


@FAMILY.program(MASKED, DROP | keep("untraceable"))
def input_twice(x: Tensor, mask: Tensor) -> Tensor:
    if mask.any():
        x[mask] = 0.0
        x[mask] += 1
    return x * 2


@FAMILY.program(MASKED, DROP)
def part_of_the_input(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    part = x[:, 1:]
    if mask[:, 1:].any():
        part[mask[:, 1:]] = 0.0
    return x + 1, part * 2


@FAMILY.program(MASKED, DROP)
def view_of_what_is_written_read_afterwards(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    row = h[1]
    if mask.any():
        h[mask] = 0.0
    return row + 1, h


@FAMILY.program(MASKED, DROP)
def base_read_after_its_view_was_written(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    flat = h.view(-1)
    if mask.any():
        flat[mask.view(-1)] = 0.0
    return h + 1


@FAMILY.program(with_masks(shape=(3, 1)), DROP, grad=True)
def mask_broadcast(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h = h.masked_fill(mask, 0.0)
    return h + 1


@FAMILY.program(with_masks(shape=(3, 1)), DROP, grad=True)
def mask_expanded(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h = h.masked_fill(mask.expand_as(h), 0.0)
    return h + 1


@FAMILY.program(with_masks(shape=(4,)), DROP, expect_grad=(EITHER,), grad=True)
def mask_of_columns(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[:, mask] = 0.0
    return h + 1


@FAMILY.program(MASKED, DROP, grad=True)
def store_in_the_else_arm(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if not mask.any():
        pass
    else:
        h = h.masked_fill(mask, 0.0)
    return (h + 1).sin() * 2


@FAMILY.program(MASKED, DROP, grad=True)
def two_tensors_one_mask(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    h, k = x * 2, x - 1
    if mask.any():
        h = h.masked_fill(mask, 0.0)
        k = torch.where(mask, 1.0, k)
    return h + 1, k * 2


@FAMILY.program(MASKED, DROP, DROP, grad=True)
def two_guards_in_a_row(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h = h.masked_fill(mask, 0.0)
    rest = ~mask
    if rest.any():
        h = h.masked_fill(rest, 1.0)
    return h


def weighted() -> InputSets:
    return [(*args, torch.full((4,), 2.0)) for args in MASKED(0)]


@FAMILY.program(cases(weighted), DROP, grad=True)
def stored_from_a_weight(x: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    # Not taken, the weight has no gradient, though a mask of nothing would give it zeros.
    h = x * 2
    if mask.any():
        h = torch.where(mask, w, h)
    return h


@FAMILY.program(cases(weighted), DROP, grad=True)
def stored_from_a_weight_used_anyway(x: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    h = x * w
    if mask.any():
        h = torch.where(mask, w, h)
    return h


@FAMILY.program(cases(weighted), DROP, expect_grad=(WHERE,), grad=True)
def infinite_gradient_behind_the_mask(x: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    h = x * w
    if mask.any():
        h = torch.where(mask, (w - 2).sqrt(), h)
    return h


@FAMILY.program(cases(lambda: [(torch.zeros(0, 4),)]), DROP, one_sided=True)
def no_elements(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask.any():
        h[mask] = 1.0
    return h
