"""Variables that begin as None or as a number and become tensors, through a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ..support.side_by_side import side_by_side

ROWS = [(torch.ones(4) * scale,) for scale in (3.0, -300.0, 0.0)]


def first_is_zero(x: Tensor) -> Any:
    previous = 0.0
    n = 0
    while True:
        x = x * 0.5
        norm = x.norm()
        if abs(norm - previous) < 1e-3:
            break
        previous = norm
        n += 1
    return x, n, previous


def best_of_all(x: Tensor) -> Any:
    best = best_x = None
    while x.norm() > 1e-2:
        x = x * 0.7 + 0.01 * x.sin()
        loss = (x * x).sum().cos()
        if best is None or loss < best:
            best, best_x = loss, x
    return x + 1, best, best_x


def infinite_at_first(x: Tensor) -> Any:
    best = float("inf")
    k = 0
    while x.norm() > 1e-2:
        x = x * 0.7
        loss = (x * x).sum().cos()
        if loss < best:
            best = loss
            k += 1
    return x + 1, best, k


def read_in_each_round(x: Tensor) -> Any:
    previous = None
    n = 0
    while True:
        x = x * 0.5
        norm = x.norm().item()
        if previous is not None and abs(norm - previous) < 1e-3:
            break
        previous = norm
        n += 1
    return x, n, previous


def integer_becomes_a_float(x: Tensor) -> Any:
    total = 0
    while x.norm() > 1e-1:
        x = x * 0.5
        total += x.sum().item()
    return x + 0, total


def momentum(x: Tensor) -> Any:
    velocity = None
    n = 0
    while x.norm() > 1e-1 and n < 200:
        velocity = x * 0.3 if velocity is None else 0.5 * velocity + x * 0.3
        x = x - velocity
        n += 1
    return x + 0, n


def written_in_place(x: Tensor) -> Any:
    total = None
    while x.norm() > 1e-1:
        x = x * 0.5
        if total is None:
            total = torch.zeros_like(x)
        total += x
    return x + 0, total


CAPTURED = [
    first_is_zero,
    best_of_all,
    infinite_at_first,
    read_in_each_round,
    integer_becomes_a_float,
    momentum,
    written_in_place,
]


@pytest.mark.parametrize("program", CAPTURED)
def test_captured(program: Callable[[Tensor], Any]) -> None:
    outcome = side_by_side(program, *ROWS)
    assert (outcome.breaks, len(outcome.graphs)) == ([], 1)
    assert "loop" in {treatment for treatment, _ in outcome.treatments}


def another_shape_each_time(x: Tensor) -> Any:
    part = None
    while x.norm() > 1e-1:
        x = x * 0.5
        part = x[:1] if part is None else x[:2]
    return x + 0, part


def seen_under_two_names(x: Tensor) -> Any:
    previous = None
    for i in range(100):  # noqa: B007  # read behind the loop
        x = x * 0.5
        if x.norm() < 1:
            break
        previous = x
    return x, previous, i


@pytest.mark.parametrize("program", [another_shape_each_time, seen_under_two_names])
def test_kept(program: Callable[[Tensor], Any]) -> None:
    outcome = side_by_side(program, *ROWS)
    assert "keep" in {treatment for treatment, _ in outcome.treatments}
