"""Guards of masked stores are dropped: nothing is asked, nothing selected, and the values stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from .drop_calls import CALLS, SOME, compiled_with_rules


def stored(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask.any():
        h[mask] = 7.0
    return h


def filled(x: Tensor) -> Tensor:
    h = x * 2
    nan = h.isnan()
    if nan.any():
        h = h.masked_fill(nan, 0.0)
    return h + 1


def chosen(x: Tensor) -> Tensor:
    h = x * 2
    valid = h.isfinite()
    if not valid.all():
        h = torch.where(valid, h, 0.0)
    return h + 1


@pytest.mark.parametrize("program", [stored, filled, chosen])
def test_neither_reduced_nor_selected(program: Callable[[Tensor], Tensor]) -> None:
    decided, ops = compiled_with_rules(program, CALLS)
    assert decided == [("drop", "proved")]
    assert ops["any"] == ops["all"] == ops["item"] == 0
    assert ops["where"] == (1 if program is chosen else 0)


@pytest.mark.parametrize("program", [filled, chosen])
def test_with_gradients(program: Callable[[Tensor], Tensor]) -> None:
    decided, ops = compiled_with_rules(program, [SOME, -SOME.abs() - 1], grad=True)
    assert decided == [("drop", "proved")]
    assert ops["any"] == ops["all"] == 0


@pytest.mark.parametrize("program", [stored, filled, chosen])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(program: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    decided, _ = compiled_with_rules(program, [x.to(dtype) for x in CALLS])
    assert decided == [("drop", "proved")]


def test_the_predicate_stays_where_somebody_else_reads_it() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        mask = h > 0
        found = mask.any()
        if found:
            h = h.masked_fill(mask, 7.0)
        return h + 1, found

    decided, ops = compiled_with_rules(program, CALLS)
    assert decided == [("drop", "proved")]
    assert ops["any"] == 1


def other_mask(x: Tensor) -> Tensor:
    h = x * 2
    if (h > 0).any():
        h = h.masked_fill(h > 1, 7.0)
    return h + 1


def inverse(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask.any():
        h = h.masked_fill(~mask, 7.0)
    return h + 1


def all_of_it(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask.all():
        h = h.masked_fill(mask, 7.0)
    return h + 1


def mask_written_in_between(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    found = mask.any()
    mask.logical_not_()
    if found:
        h = h.masked_fill(mask, 7.0)
    return h + 1


def mask_written_in_the_arm(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask.any():
        mask.logical_not_()
        h = h.masked_fill(mask, 7.0)
    return h + mask


def tensor_written_in_the_arm(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask.any():
        h.neg_()
        h[mask] = 7.0
    return h + 1


def mask_made_again_after_a_write(x: Tensor) -> Tensor:
    h = x * 2
    if (h > 0).any():
        h.neg_()
        h[h > 0] = 7.0
    return h + 1


def copied_from_another(x: Tensor) -> Tensor:
    h, k = x * 2, x * 3
    mask = h > 0
    if mask.any():
        h.copy_(torch.where(mask, 7.0, k))
    return h + 1


def arms_the_wrong_way_round(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask.any():
        h = torch.where(mask, h, 7.0)
    return h + 1


def mask_as_the_value(x: Tensor) -> Tensor:
    # The method selects *from* the mask.
    mask, flags = x > 0, x < 0.5
    if mask.any():
        flags = mask.where(x < 0, flags)
    return flags.float()


def something_else_as_well(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask.any():
        h = h.masked_fill(mask, 7.0) * 1.5
    return h + 1


def else_arm(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask.any():
        h = h.masked_fill(mask, 7.0)
    else:
        h = h - 1
    return h * 3 + 1


def row_of_the_mask(x: Tensor) -> Tensor:
    h = x * 2
    mask = h > 0
    if mask[0].any():
        h = h.masked_fill(mask, 7.0)
    return h + 1


def counted_in_eight_bits(x: Tensor) -> Tensor:
    # 256 true elements are none in eight bits.
    h = (x * 2).repeat(64, 1)[:64].repeat(1, 1)
    mask = h > -9
    if mask.sum(dtype=torch.uint8) > 0:
        h = h.masked_fill(mask, 7.0)
    return h + 1


def narrowed_to_eight_bits(x: Tensor) -> Tensor:
    h = (x * 2).repeat(64, 1)[:64]
    mask = h > -9
    if mask.sum().to(torch.uint8) > 0:
        h = h.masked_fill(mask, 7.0)
    return h + 1


def narrowed_and_stored_in_place(x: Tensor) -> Tensor:
    h = (x * 2).repeat(64, 1)[:32]
    mask = h > -9
    if int(mask.sum().to(torch.int8)) > 0:  # of 128 it is -128
        h[mask] = 7.0
    return h + 1


def inverse_of_a_number(x: Tensor) -> Tensor:
    # ~1 is -2, which is true, as ~0 is.
    h = x * 2
    mask = h > 0
    if (~mask.any().to(torch.int32)).bool():
        h = h.clone()
    else:
        h = h.masked_fill(mask, 7.0)
    return h + 1


KEPT = [
    other_mask,
    inverse,
    all_of_it,
    mask_written_in_between,
    mask_written_in_the_arm,
    tensor_written_in_the_arm,
    mask_made_again_after_a_write,
    copied_from_another,
    arms_the_wrong_way_round,
    mask_as_the_value,
    something_else_as_well,
    else_arm,
    row_of_the_mask,
    counted_in_eight_bits,
    narrowed_to_eight_bits,
    narrowed_and_stored_in_place,
    inverse_of_a_number,
]


@pytest.mark.parametrize("program", KEPT, ids=lambda program: program.__name__)
def test_not_dropped(program: Callable[[Tensor], Tensor]) -> None:
    decided, _ = compiled_with_rules(program, CALLS)
    assert decided
    assert all(treatment == "where" for treatment, _ in decided), decided


def test_a_weight_in_the_arm_has_no_gradient_where_it_is_not_taken() -> None:
    weight = torch.ones(4, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        h = x * 2
        mask = h > 0
        if mask.any():
            h = torch.where(mask, weight, h)
        return h

    decided, _ = compiled_with_rules(program, [SOME, -SOME.abs() - 1], grad=True)
    assert {treatment for treatment, _ in decided} == {"drop"}
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for x, taken in ((SOME, True), (-SOME.abs() - 1, False)):
        weight.grad = None
        h = x.clone().requires_grad_()
        compiled(h).sum().backward()
        assert (weight.grad is not None) is taken


def test_no_nan_from_what_is_not_stored() -> None:
    """0 · ∞ in the backward of the arm, were it run without a gate where it is not taken."""

    def program(x: Tensor) -> Tensor:
        h = x * 2
        mask = h > 5
        if mask.any():
            h = torch.where(mask, (x - x).sqrt(), h)
        return h

    decided, _ = compiled_with_rules(program, [-SOME.abs() - 1, SOME], grad=True)
    assert decided == [("where", "pure_total")]
