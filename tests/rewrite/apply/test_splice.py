"""Matches that write one tensor in turn: each reader gets the result written last before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

X = torch.ones(3, 4)
ADD = fusepass.Rule("plus", lambda a, s: a + s, lambda a, s: torch.add(a, s), (X, 0.7))
MUL = fusepass.Rule("times", lambda a, s: a * s, lambda a, s: torch.mul(a, s), (X, 0.7))
BOTH = fusepass.Rule(
    "line", lambda a, s, t: a * s + t, lambda a, s, t: torch.add(torch.mul(a, s), t), (X, 0.7, 0.3)
)


def twice(x: Tensor) -> Tensor:
    h = x * 2
    h.add_(1)
    h.add_(2)
    return h


def read_in_between(x: Tensor) -> Any:
    h = x * 2
    h.add_(1)
    first = h + 0
    h.mul_(3)
    second = h * 1
    h.add_(5)
    return h, first, second


def under_several_names(x: Tensor) -> Any:
    h = x * 2
    name = h
    h.add_(1)
    result = h.add_(2)
    h.mul_(3)
    return name, result, h


def an_input(x: Tensor) -> Tensor:
    x.add_(1)
    y = x * 2
    x.mul_(3)
    x.add_(2)
    return y + x


def through_a_view(x: Tensor) -> Any:
    h = x * 2
    flat = h.view(-1)
    h.add_(1)
    y = flat * 2
    h.mul_(3)
    return y, flat, h


def many(x: Tensor) -> Tensor:
    h = x * 2 + 1
    h.mul_(2)
    h.add_(3)
    h.mul_(4)
    h.add_(1)
    return h


def names(rules: list[fusepass.Rule]) -> str:
    return "-".join(rule.name for rule in rules)


@pytest.mark.parametrize("rules", [[ADD], [MUL], [ADD, MUL], [BOTH], [ADD, MUL, BOTH]], ids=names)
@pytest.mark.parametrize(
    "program",
    [twice, read_in_between, under_several_names, an_input, through_a_view, many],
    ids=lambda program: program.__name__,
)
def test_writes_follow_each_other(
    program: Callable[[Tensor], Any], rules: list[fusepass.Rule]
) -> None:
    with fusepass.rules(*rules):
        fusepass.reset()
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        given = torch.randn(3, 4)
        mine = given.clone()
        torch.testing.assert_close(compiled(mine), program(given), rtol=0, atol=0)
    assert torch.equal(mine, given)


def test_both_matches_are_replaced() -> None:
    with fusepass.rules(ADD, MUL):
        fusepass.reset()
        compiled = torch.compile(many, backend="fusepass", options={"codegen": "eager"})
        compiled(X)
        decisions = fusepass.last_report(compiled).decisions
    applied = [d.rule for d in decisions if d.outcome.value == "applied"]
    assert sorted(applied) == ["plus"] * 3 + ["times"] * 3
