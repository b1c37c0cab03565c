"""A value that is one of two numbers is one number where code computes with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ..support.side_by_side import side_by_side

TURNS = [(torch.tensor(v),) for v in (1.0, 0.8, 0.55, 1.2, 0.1)]


def chain(x: Tensor) -> Any:
    a = 0.5
    for step in range(12):
        if x > step * 0.1:
            a = a + x.item()
    return x * a, a


def beside_another(x: Tensor) -> Any:
    a, b = 0.5, 0.25
    if x > 0.6:
        a = x.item()
    if x > 0.9:
        b = a * 2
    return x / a + b, a - b, a < b


@pytest.mark.parametrize("function", [chain, beside_another])
def test_computed_once(function: Any) -> None:
    outcome = side_by_side(function, *TURNS)
    assert outcome.breaks == []
    assert len(outcome.graphs) == 1


def another_kind(x: Tensor) -> Any:
    a: Any = 1
    if x > 0.6:
        a = x.item()
    return x * 2, a * 2


def test_an_integer_or_a_float_stays_one_of_two() -> None:
    outcome = side_by_side(another_kind, *TURNS)
    assert outcome.breaks == []
