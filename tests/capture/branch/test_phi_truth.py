"""What is asked of values that are one of two is recorded once, where it still holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ..support.side_by_side import side_by_side, signed

TURNS = signed(1.5, -0.5, 2.0, 0.25)
LOGICAL = ("where", "logical_and", "logical_or", "logical_not")


def counted(most: int) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        steps = 0
        for i in range(most):
            if x[i % 3] > 0.1 * i:
                x = x * 0.9
                steps += 1
            if steps > 2:
                x = x + 0.01
        return x

    return program


@pytest.mark.parametrize("rounds", [8, 16])
def test_a_counter_that_each_round_tests_takes_few_operations_a_round(rounds: int) -> None:
    outcome = side_by_side(counted(rounds), *TURNS)
    assert outcome.breaks == []
    (graph,) = outcome.graphs
    names = [getattr(node.target, "__name__", node.target) for node in graph.graph.nodes]
    logical = sum(any(name in str(one) for name in LOGICAL) for one in names)
    assert logical <= 9 * rounds


def first_in_an_arm(x: Tensor) -> Tensor:
    a, b = False, False
    if x[0] > 0:
        a = True
    if x[1] > 0:
        b = True
    if x[2] > 0:
        x = x * 2
        if a != b:
            x = x + 1
    if a != b:
        x = x * 3
    return x


def in_both_arms(x: Tensor) -> Tensor:
    a, b = False, False
    if x[0] > 0:
        a = True
    if x[1] > 0:
        b = True
    if x[2] > 0:
        if a != b:
            x = x + 1
    elif a != b:
        x = x - 1
    return x


def written_in_between(x: Tensor) -> Tensor:
    first, second = x[0] > 0, x[1] > 0
    a, b = False, False
    if first:
        a = True
    if second:
        b = True
    if a and b:
        x = x + 1
    if a != b:
        x = x * 2
    first.fill_(False)
    if a != b:
        x = x * 3
    if first:
        x = x * 100
    return x


def raises_on_it(x: Tensor) -> Tensor:
    a, b = False, False
    if x[0] > 0:
        a = True
    if x[1] > 0:
        b = True
    if a == b and x.sum() > 1e6:
        raise ValueError("both")
    if a == b:
        x = x + 1
    return x


PROGRAMS = [first_in_an_arm, in_both_arms, written_in_between, raises_on_it]
SIGNS = [(torch.tensor([a, b, c]),) for a in (1.0, -1.0) for b in (2.0, -2.0) for c in (0.5, -0.5)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_asked_again_where_it_holds(program: Callable[[Tensor], Tensor], grad: bool) -> None:
    outcome = side_by_side(program, *SIGNS, grad=grad)
    assert outcome.breaks == []
