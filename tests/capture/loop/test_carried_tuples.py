"""Tuples are carried through loops item by item."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..support.side_by_side import side_by_side

ROWS = [(torch.ones(4) * scale,) for scale in (3.0, -300.0, 0.0)]


def nested(x: Tensor) -> Any:
    state = (x, (x * 2, 0), 1.0, "kept")
    while state[0].norm() > 0.1:
        a, (b, n), f, text = state
        state = (a * 0.5, (b + a, n + 1), f * 0.5, text)
    return state[0] + 0, state[1][0] + 0, state[1][1], state[2], state[3]


def test_items_of_every_kind() -> None:
    outcome = side_by_side(nested, *ROWS)
    assert (outcome.breaks, len(outcome.graphs)) == ([], 1)


def grows(x: Tensor) -> Any:
    state = (x,)
    while state[0].norm() > 0.1:
        state = (state[0] * 0.5, *state)[:3]
    return len(state), state[0] + 0


def changes_a_text(x: Tensor) -> Any:
    state = (x, "first")
    while state[0].norm() > 0.1:
        state = (state[0] * 0.5, "later")
    return state[0] + 0, state[1]


def test_another_kind_of_tuple_is_kept() -> None:
    for program in (grows, changes_a_text):
        outcome = side_by_side(program, *ROWS)
        assert "keep" in {treatment for treatment, _ in outcome.treatments}


def from_outside(pair: tuple[Tensor, Tensor]) -> Any:
    while pair[0].norm() > 0.1:
        pair = (pair[0] * 0.5, pair[1] + 1)
    return pair


def test_a_tuple_that_may_be_the_callers_is_kept() -> None:
    for scale in (1.0, 0.0):
        outcome = side_by_side(from_outside, ((torch.ones(3) * scale, torch.ones(3)),))
        assert "alias" in {code for _, code in outcome.treatments}
