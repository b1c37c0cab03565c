"""Guards in rounds of a loop: whether one mask is false may rest on whether another one is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from .drop_calls import CALLS, compiled_with_rules


def nans_away(x: Tensor, value: float = 0.0) -> Tensor:
    bad = x.isnan()
    return x.masked_fill(bad, value) if bad.any() else x


class Round(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        bad = x.isnan()
        if bad.any():
            x = x.masked_fill(bad, 0.0)
        return x


def rounds(count: int) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        x = x * 2
        for _ in range(count):
            bad = x.isnan()
            if bad.any():
                x = x.masked_fill(bad, 0.0)
        return x * 2

    return program


def in_modules(x: Tensor) -> Tensor:
    return torch.nn.Sequential(*(Round() for _ in range(4)))(x * 2)


def by_a_helper(x: Tensor) -> Tensor:
    for value in (0.0, 1.0, 2.0):
        x = nans_away(x * 2, value)
    return x


def stores_in_rounds(x: Tensor) -> Tensor:
    x = x * 2
    for _ in range(3):
        bad = x.isnan()
        if bad.any():
            x[bad] = 0.0
    return x


def asked_for_the_first_again(x: Tensor) -> Tensor:
    """Whether the second mask is false rests on whether the first one is, and so back."""
    x = x * 2
    first = x.isnan()
    y = x.masked_fill(first, 0.0)
    if y.isnan().any():
        y = y.masked_fill(first, 1.0)
    return y


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("program", "sites"),
    [
        (rounds(2), 2),
        (rounds(3), 3),
        (rounds(8), 8),
        (rounds(30), 30),
        (in_modules, 4),
        (by_a_helper, 3),
        (stores_in_rounds, 3),
    ],
)
def test_rounds_of_a_loop(program: Callable[[Tensor], Tensor], sites: int, grad: bool) -> None:
    decided, ops = compiled_with_rules(program, CALLS, grad=grad)
    assert decided == [("drop", "proved")] * sites
    assert not ops["any"]


def test_nested_rounds() -> None:
    def program(x: Tensor) -> Tensor:
        x = x * 2
        for _ in range(3):
            bad = x.isnan()
            if bad.any():
                x = x.masked_fill(bad, 0.0)
                huge = x.isinf()
                if huge.any():
                    x = x.masked_fill(huge, 1.0)
        return x

    decided, _ = compiled_with_rules(program, CALLS)
    assert {treatment for treatment, _ in decided} <= {"drop", "where"}


@pytest.mark.parametrize("grad", [False, True])
def test_a_mask_that_rests_on_itself_is_not_known(grad: bool) -> None:
    decided, _ = compiled_with_rules(asked_for_the_first_again, CALLS, grad=grad)
    assert decided == [("where", "pure_total")]


def test_a_chain_of_masks_in_front_of_the_guard() -> None:
    def program(x: Tensor) -> Tensor:
        x = x * 2
        bad = x.isnan()
        mask = bad
        for _ in range(1100):
            mask = mask.logical_not()
        if mask.any():
            x = x.masked_fill(bad, 0.0)
        return x

    decided, ops = compiled_with_rules(program, CALLS)
    assert decided == [("drop", "proved")]
    assert not ops["logical_not"], "nothing else reads the chain"


def test_the_other_operand_given_by_name_counts() -> None:
    def program(x: Tensor) -> Tensor:
        x = x * 2
        bad = x.isnan()
        if bad.any():
            x = x.masked_fill(torch.logical_or(bad, other=x > 0), 0.0)
        return x

    decided, _ = compiled_with_rules(program, CALLS)
    assert decided == [("where", "pure_total")]
