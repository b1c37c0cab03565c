"""Which loops are captured as loops, and which are unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.capture.loop import policy
from fusepass.capture.loop.policy import MOST_UNROLLED

from ..support.side_by_side import side_by_side

ROWS = [(torch.ones(4) * scale,) for scale in (8.0, 0.1, 3.0)]


def ended_by_a_tensor(x: Tensor) -> Tensor:
    while x.norm() > 1:
        x = x * 0.5
    return x + 0


def ended_by_a_flag(x: Tensor) -> Tensor:
    done = False
    while not done:
        x = x * 0.5
        if x.norm() < 1:
            done = True
    return x


def left_from_a_long_range(x: Tensor) -> Tensor:
    for _ in range(MOST_UNROLLED + 1):
        if x.norm() < 1:
            break
        x = x * 0.5
    return x + 0


def with_a_distant_bound(x: Tensor) -> Tensor:
    turn = 0
    while x.norm() > 1 and turn < 10 * MOST_UNROLLED:
        x = x * 0.5
        turn += 1
    return x + turn


def with_continue(x: Tensor) -> tuple[Tensor, int]:
    turn = 0
    while x.norm() > 1:
        turn += 1
        x = x * 0.5
        if x.sum() > 2:
            x = x - 0.25
            continue
        x = x + 0.125
    return x, turn


def left_by_two_tests(x: Tensor) -> Tensor:
    while x.norm() > 1:
        x = x * 0.5
        if x.sum() < 0.5:
            return x - 1
    return x + 1


def left_in_the_middle_and_at_the_end(x: Tensor) -> Tensor:
    while True:
        x = x * 0.5
        if x.sum() < 0.5:
            break
        x = x - 0.125
        if x.norm() < 1:
            break
    return x + 1


def left_from_a_short_range(x: Tensor) -> Tensor:
    for _ in range(4):
        if x.norm() < 1:
            break
        x = x * 0.5
    return x + 0


def with_a_near_bound(x: Tensor) -> Tensor:
    turn = 0
    while x.norm() > 1 and turn < 4:
        x = x * 0.5
        turn += 1
    return x + turn


def long_range_without_a_test(x: Tensor) -> Tensor:
    for _ in range(MOST_UNROLLED + 1):
        x = x * 0.5 + 1
    return x


def branch_behind_a_long_range(x: Tensor) -> Tensor:
    for _ in range(MOST_UNROLLED + 1):
        x = x * 0.5 + 1
    return x * 2 if x.sum() > 3 else x - 1


def over_a_short_list(x: Tensor) -> Tensor:
    for factor in (0.5, 0.25, 2.0):
        if x.norm() > 1:
            x = x * factor
    return x + 0


def filled(x: Tensor) -> list[Tensor]:
    return [x * i if x.sum() > i else x - i for i in range(3)]


BY_TENSORS_ALONE = [
    ended_by_a_tensor,
    with_continue,
    left_by_two_tests,
    left_in_the_middle_and_at_the_end,
]
LOOPS = [*BY_TENSORS_ALONE, ended_by_a_flag, left_from_a_long_range, with_a_distant_bound]
UNROLLED = [left_from_a_short_range, with_a_near_bound, over_a_short_list, filled]


@pytest.mark.parametrize("program", LOOPS)
def test_captured_as_a_loop(program: Callable[[Tensor], Any]) -> None:
    outcome = side_by_side(program, *ROWS)
    assert "loop" in {treatment for treatment, _ in outcome.treatments}
    assert "keep" not in {treatment for treatment, _ in outcome.treatments}
    assert (outcome.breaks, len(outcome.graphs)) == ([], 1)


@pytest.mark.parametrize("program", BY_TENSORS_ALONE)
def test_not_unrolled_first(
    program: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    met = []
    jump = policy.starts_at_jump

    def counted(*args: Any) -> bool:
        met.append(args)
        return jump(*args)

    monkeypatch.setattr(policy, "starts_at_jump", counted)
    side_by_side(program, *ROWS)
    assert len(met) < 10


@pytest.mark.parametrize("program", [*UNROLLED, branch_behind_a_long_range])
def test_unrolled(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *ROWS).only("where", "pure_total")


def test_without_a_test_on_a_tensor() -> None:
    outcome = side_by_side(long_range_without_a_test, *ROWS)
    assert (outcome.decisions, outcome.breaks) == ([], [])
    assert outcome.ops["mul"] == MOST_UNROLLED + 1
