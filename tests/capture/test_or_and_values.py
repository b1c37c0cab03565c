"""``number and tensor``, ``number or tensor``: what is left is the number itself, or the tensor."""

# ruff: noqa: T201 - the programs print

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from .support.side_by_side import side_by_side, signed
from .support.written import assert_same_text

TURNS = [
    *signed(1.0, -0.5, 2.0, 0.25),
    *signed(5.0, 20.0, float("nan"), 0.25),
    *signed(5.0, 20.0, 0.5, 0.25),
    *signed(0.0, 0.0, 0.0, 0.0),
]


def truth_and(x: Tensor) -> Any:
    return (bool(x.sum() > 0) and x.max() > 3), x * 2


def number_and(x: Tensor) -> Any:
    return (x.sum().item() and x.max()), x * 2


def comparison_or(x: Tensor) -> Any:
    return x * 2, (x.mean().item() > 1 or x.max() > 3)


def count_or(x: Tensor) -> Any:
    return x * 2, (int((x > 1).sum()) or x.max())


def several(x: Tensor) -> Any:
    return x * 2, (bool(x.sum() > 3) or (x.mean().item() < 0 and x.isnan().any()))


def in_a_list(x: Tensor) -> Any:
    return [x * 1, bool(x.sum() > 0) and x.max() > 3]


def left_and_tested(x: Tensor) -> Any:
    found = (x.sum() > 0).item() or x.isnan().any()
    y = x * 2 if found else x * 3
    return y, found


def compared(x: Tensor) -> Any:
    """What is compared is the number, not its truth."""
    return x * 2 if (x.sum().item() or x.max()) > 3 else x * 3


def of_a_helper(x: Tensor) -> Any:
    return truth_and(x)[0], x


PROGRAMS = [
    truth_and,
    number_and,
    comparison_or,
    count_or,
    several,
    in_a_list,
    left_and_tested,
    compared,
    of_a_helper,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_value_of_or_and_after_the_branch(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *TURNS)


class Holds:
    """Where an attribute takes it."""

    found: Any = None


def test_value_of_or_in_an_attribute() -> None:
    def program(x: Tensor, holds: Holds) -> Tensor:
        holds.found = x.sum().item() < 0 or x.isnan().any()
        return x * 2

    for (x,) in TURNS:
        eager, ours = Holds(), Holds()
        program(x, eager)
        torch.compile(program, backend="fusepass", options={"codegen": "eager"})(x, ours)
        assert type(ours.found) is type(eager.found)
        assert bool(ours.found) is bool(eager.found)


def test_printed() -> None:
    def program(x: Tensor) -> Tensor:
        print((x.sum() > 0).item() or x.isnan().any())
        print(bool(x.sum() > 0) and x.max() > 3)
        return x + 1

    assert_same_text(program, *[lambda x=x: (x,) for (x,) in TURNS])


def only_tested(x: Tensor) -> Tensor:
    found = x.mean().item() > 1 or x.max() > 3
    return x * 2 if found else x - 1


def only_tested_twice(x: Tensor) -> Tensor:
    found = x.mean().item() > 1 or x.max() > 3
    y = x * 2 if found else x - 1
    return y + 1 if not found else y


def returned_to_a_test(x: Tensor) -> Tensor:
    def found() -> Any:
        return x.mean().item() > 1 or x.max() > 3

    return x * 2 if found() else x - 1


def number_only_tested(x: Tensor) -> Tensor:
    found = x.double().mean().item() or x.double().max()
    return x * 2 if found else x - 1


def tensor_first(x: Tensor) -> Tensor:
    return (x.isnan().any() or x.max() > 3) & (x.sum() > 0)


@pytest.mark.parametrize(
    "program",
    [only_tested, only_tested_twice, returned_to_a_test, number_only_tested],
    ids=lambda p: p.__name__,
)
def test_only_tested_stays_captured(program: Callable[[Tensor], Tensor]) -> None:
    outcome = side_by_side(program, *TURNS)
    if sys.version_info < (3, 12):  # later a copy of the number is kept beside the one tested
        outcome.only("where", "pure_total")


def test_tensors_stay_captured() -> None:
    side_by_side(tensor_first, *TURNS).only("where", "pure_total")
