"""An arm that prints and writes: captured if no line shows what the arm writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from .support.side_by_side import side_by_side, signed

TURNS = signed(1.0, -0.5, 2.0)


def counts(x: Tensor) -> tuple[Tensor, Tensor]:
    seen = torch.zeros(2)
    if x.sum() > 0:
        print("sum", x.sum().item())  # noqa: T201
        seen += 1
        seen[1] = x.max()
    return x * 2, seen


def shows_what_another_line_writes(x: Tensor) -> tuple[Tensor, Tensor]:
    y, b = x * 2, x + 1
    if x.sum() > 0:
        print(y)  # noqa: T201
        b.mul_(2)
    y.add_(5)
    return y, b


@pytest.mark.parametrize("program", [counts, shows_what_another_line_writes])
def test_captured(program: Callable[[Tensor], Any]) -> None:
    outcome = side_by_side(program, *TURNS)
    assert ("where", "pure_total") in outcome.treatments, outcome.decisions
    assert outcome.breaks == []


def before_and_after(x: Tensor) -> Tensor:
    b = x + 1
    if x.sum() > 0:
        print("before", b)  # noqa: T201
        b.mul_(2)
        print("after", b)  # noqa: T201
    return b


def a_number_of_it(x: Tensor) -> Tensor:
    b = x + 1
    if x.sum() > 0:
        b[0] = 1
        print("sum", b.sum().item())  # noqa: T201
    return b


def a_view_of_it(x: Tensor) -> Tensor:
    b = x + 1
    part = b[:1]
    if x.sum() > 0:
        print(part)  # noqa: T201
        b.mul_(2)
    return b


def in_an_arm_inside(x: Tensor) -> Tensor:
    b = x + 1
    if x.sum() > 0:
        b.mul_(2)
        if x.max() > 1:
            print("large", b.max().item())  # noqa: T201
    return b


@pytest.mark.parametrize(
    "program", [before_and_after, a_number_of_it, a_view_of_it, in_an_arm_inside]
)
def test_kept_where_a_line_shows_what_is_written(program: Callable[[Tensor], Any]) -> None:
    outcome = side_by_side(program, *TURNS)
    assert ("keep", "side_effect") in outcome.treatments, outcome.decisions


def by_an_item(x: Tensor) -> Tensor:
    y = x * 1
    if y.sum() > 0:
        print(y)  # noqa: T201
    y.numpy()[0] = 9
    return y


def by_an_operator(x: Tensor) -> Tensor:
    y = x * 1
    if y.sum() > 0:
        print(y)  # noqa: T201
    held = y.numpy()
    held += 1
    return y


def by_a_method(x: Tensor) -> Tensor:
    y = x * 1
    if y.sum() > 0:
        print(y)  # noqa: T201
    y.numpy().fill(2)
    return y


@pytest.mark.parametrize("program", [by_an_item, by_an_operator, by_a_method])
def test_a_line_shows_nothing_that_numpy_writes_later(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *TURNS)
