"""Tests joined by ``and`` and ``or``: made together where that changes nothing, else one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.side_by_side import side_by_side, signed

TOGETHER = "tested together"
TURNS = [
    *signed(1.0, -0.5, 2.0, 0.25),
    *signed(1.0, float("nan"), 2.0, 0.25),
    *signed(10.0, 20.0, float("inf"), 0.25),
    *signed(0.1, 0.2, 0.3, 0.4),
]


def both(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 and x.max() < 3 else x - 1


def either(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 3 or x.max() < 3 else x - 1


def not_the_first(x: Tensor) -> Tensor:
    return x * 2 if not x.sum() > 3 and x.max() < 3 else x - 1


def not_the_first_or(x: Tensor) -> Tensor:
    return x * 2 if not x.sum() > 3 or x.max() < 3 else x - 1


def neither(x: Tensor) -> Tensor:
    return x * 2 if not (x.sum() > 0 and x.max() < 3) else x - 1


def three(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 and x.max() < 3 and x.min() > -1 else x - 1


def either_and(x: Tensor) -> Tensor:
    return x * 2 if (x.sum() > 3 or x.max() < 3) and x.min() > -1 else x - 1


def both_or(x: Tensor) -> Tensor:
    return x * 2 if (x.sum() > 0 and x.max() < 3) or x.min() > -1 else x - 1


def and_either(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 and (x.max() < 3 or x.min() > -1) else x - 1


def several_elements(x: Tensor) -> Tensor:
    return x * 2 if x[:1] and x[None, 1:2] else x - 1


def numbers(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() > 0 and float(x.max()) < 3 else x - 1


def conditional_inside(x: Tensor) -> Tensor:
    if x.sum() > 0 and (x.max() if x.min() < 0 else x.mean()):
        return x * 2
    return x - 1


SHAPES = [
    both,
    either,
    not_the_first,
    not_the_first_or,
    neither,
    three,
    either_and,
    both_or,
    and_either,
    several_elements,
]


@pytest.mark.parametrize("program", SHAPES)
@pytest.mark.parametrize("grad", [False, True])
def test_truth_of_every_shape(program: Any, grad: bool) -> None:
    outcome = side_by_side(program, *TURNS, grad=grad)
    outcome.only("where", "pure_total")
    assert any(TOGETHER in reason for reason in outcome.reasons)
    assert outcome.ops["sub"] == outcome.ops["mul"] == 1, "an arm was traced twice"


@pytest.mark.parametrize("program", [numbers, conditional_inside])
def test_values_however_they_are_tested(program: Any) -> None:
    side_by_side(program, *TURNS).only("where", "pure_total")


class Flags:
    """What is known while tracing, before and behind a tensor."""

    def __init__(self, flag: Any) -> None:
        self.flag = flag

    def __call__(self, x: Tensor) -> Tensor:
        if x.sum() > 0 and self.flag:
            x = x + 1
        if x.max() < 3 or self.flag:
            x = x * 3
        if x.min() < 0 and not self.flag:
            x = x - 2
        if self.flag and x.mean() > 0:
            x = x / 2
        return x + 0


@pytest.mark.parametrize("flag", [True, False, None, 3, 0.0, "yes", ""])
def test_constants_decide_or_do_not(flag: Any) -> None:
    side_by_side(Flags(flag), *TURNS).only("where", "pure_total")


def test_a_container_is_tested_one_by_one() -> None:
    outcome = side_by_side(Flags([1]), *TURNS)
    outcome.only("where", "pure_total")


def looked_up(x: Tensor) -> Tensor:
    # The second test fails where the first one does not hold.
    index = (x * 4).long().clamp(min=0)
    if (index < 4).all() and F.embedding(index, torch.arange(8.0).view(4, 2)).sum() > 2:
        return x * 2
    return x - 1


def drawn(x: Tensor) -> Tensor:
    if x.sum() > 0 and torch.rand(()) > 0.5:
        return x * 2
    return x - 1


def bound(x: Tensor) -> Tensor:
    if x.sum() > 0 and (top := x.max()) > 1:
        return x / top
    return x - 1


def written(x: Tensor) -> Tensor:
    h = x * 1
    if x.sum() > 0 and h.mul_(2).max() > 3:
        h = h + 1
    return h + 0


@pytest.mark.parametrize("program", [looked_up, drawn, bound, written])
def test_second_tests_that_must_not_always_be_made(program: Any) -> None:
    outcome = side_by_side(program, *TURNS)
    assert outcome.decisions


def grown(h: Tensor, flag: Tensor) -> Tensor:
    h.add_(1)
    return flag


def written_beside_the_same_test(x: Tensor) -> Tensor:
    # The second test is the first tensor again: what is selected is only the tensor written.
    flag, h = x.sum() > 0, x[:1].mean() * 1
    return h * 2 + x if flag and grown(h, flag) else h * 3 + x


def written_beside_the_same_test_or(x: Tensor) -> Tensor:
    flag, h = x.sum() > 0, x * 1
    return h * 2 if flag or grown(h, flag) else h * 3


@pytest.mark.parametrize("program", [written_beside_the_same_test, written_beside_the_same_test_or])
@pytest.mark.parametrize("grad", [False, True])
def test_a_write_is_no_truth_value(program: Any, grad: bool) -> None:
    assert side_by_side(program, *TURNS, grad=grad).decisions


def test_random_numbers_are_drawn_where_eager_draws_them() -> None:
    outcome = side_by_side(drawn, *TURNS)
    assert TOGETHER not in " ".join(outcome.reasons)


def returns_from_a_loop(x: Tensor) -> Tensor:
    for _ in range(12):
        if x.sum() > 100 and x.max() < 300:
            return x * 2
        x = x * 1.5
    return x + 0


def test_ways_through_a_loop_do_not_multiply() -> None:
    outcome = side_by_side(returns_from_a_loop, *TURNS)
    outcome.only("where", "pure_total")
    assert len(outcome.decisions) == 2 * 12


def while_with_a_count(x: Tensor) -> Tensor:
    turn = 0
    while x.sum() < 40 and turn < 4:
        x = x * 2
        turn += 1
    return x + 0


def test_a_count_behind_the_tensor_ends_the_loop() -> None:
    side_by_side(while_with_a_count, *TURNS).only("where", "pure_total")


def several_ways(x: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        if x.sum() > 100:
            if x.max() < 300:
                return x * 2
            x = x + 1
        x = x * 1.5
    return x + 0


@pytest.mark.parametrize("rounds", [7, pytest.param(10, marks=pytest.mark.sampled(3))])
def test_work_is_bounded_where_they_do(rounds: int) -> None:
    outcome = side_by_side(several_ways, *[(x, rounds) for (x,) in signed(1.0, 2.0)])
    assert set(outcome.treatments) == {("loop", "loop"), ("where", "pure_total")}
    assert len(outcome.decisions) == 3
    assert outcome.breaks == []


def left_as_it_is(x: Tensor) -> Tensor:
    if x.sum() > 0 and x.max() > 3:
        x = x.clamp(max=3)
    return x


def test_both_tests_choose_what_is_handed_on() -> None:
    side_by_side(left_as_it_is, *TURNS).only("where", "pure_total")


def test_forced_treatments_reach_the_branch() -> None:
    side_by_side(both, *TURNS, treatment="keep").only("keep", "forced")
    outcome = side_by_side(both, *TURNS, treatment="cond")
    assert {treatment for treatment, _ in outcome.treatments} == {"cond"}
