"""What the report says of a call that is not quite the one of the pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

X, Y = torch.randn(4, 8), torch.randn(4, 8)


def said(
    pattern: Callable[..., Any],
    example: tuple[Any, ...],
    program: Callable[..., Any],
    *inputs: Tensor,
) -> str:
    """The reason of the rule's first decision."""
    fusepass.reset()
    rule = fusepass.Rule("test_text", pattern, lambda *given: pattern(*given) + 0, example)
    with fusepass.rules(rule):
        decisions = fusepass.explain(program, *inputs).decisions
    return next(d.reason for d in decisions if d.rule == rule.name)


@pytest.mark.parametrize("joined", [torch.cat, torch.stack])
def test_flavours_of_lists_of_tensors(joined: Callable[..., Tensor]) -> None:
    def pattern(x: Tensor, y: Tensor) -> Tensor:
        return joined((x.sin(), y.sin()), 0).exp()

    text = said(pattern, (X, Y), lambda x, y: joined((x.sin(), y.sin()), 1).exp(), X, Y)
    assert text.endswith(f"another variant of {joined.__name__}: dim=1 (rule: absent)"), text
    three = said(pattern, (X, Y), lambda x, y: joined((x.sin(), y.sin(), x), 0).exp(), X, Y)
    assert three.endswith(f"another variant of {joined.__name__}: tensors: 3 (rule: 2)"), three


def test_all_dimensions_said_or_not() -> None:
    pattern = lambda x: x.sin().sum() * 2  # noqa: E731
    assert "became one" in said(pattern, (X,), lambda x: x.sin().sum(dim=None) * 2, X)


def test_a_scalar_that_would_be_two_numbers() -> None:
    def pattern(x: Tensor, k: float) -> Tensor:
        return (x * k).sin() * k

    text = said(pattern, (X, 2.0), lambda x: (x * 3.0).sin() * 5.0, X)
    assert "k would be two different numbers" in text
    assert "3.0" in text
    assert "5.0" in text


def test_sizes_that_are_one_in_the_rule() -> None:
    def pattern(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return (torch.nn.functional.linear(x, w) + b).relu()

    example = X, torch.randn(3, 8), torch.randn(3)
    text = said(pattern, example, pattern, X, torch.randn(3, 8), torch.randn(1))
    assert "w.shape[0] is 3 and b.shape[0] is 1, where the rule has one size" in text
