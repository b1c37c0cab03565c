"""``match.training``: what a check is told of the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.rewrite.rule import Match, Place

X = torch.randn(3, 4)


def told(program: Callable[..., Any], *inputs: Tensor, place: Place = "before") -> list[bool]:
    """What the check of a rule for ``x.sin()`` is told at each match."""
    seen: list[bool] = []

    def check(match: Match) -> fusepass.Reject:
        seen.append(match.training)
        return fusepass.Reject("no_rule", "only looking")

    rule = fusepass.Rule("test_told", lambda x: x.sin(), torch.sin, (X,), check, place=place)
    codegen = "eager" if place == "before" else "eager-decomposed"
    with fusepass.rules(rule):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
        result = compiled(*inputs)
        if isinstance(result, Tensor) and result.requires_grad:
            result.sum().backward()
    return seen


def parameter() -> Tensor:
    return torch.randn(3, 4, requires_grad=True)


def test_a_backward_will_follow() -> None:
    assert told(lambda w: w.sin().exp(), parameter()) == [True]


@pytest.mark.parametrize(
    "program",
    [
        lambda w: w.sin().exp().detach(),
        lambda w: w.sin().gt(0),
        lambda w: w.detach().sin(),
    ],
)
def test_nothing_that_has_a_gradient_is_handed_out(program: Callable[..., Any]) -> None:
    assert told(program, parameter()) == [False]


def test_a_part_that_is_not_differentiated() -> None:
    assert told(lambda w: w.detach().sin() + w.exp(), parameter()) == [False]


def test_no_grad_and_inference_mode() -> None:
    with torch.no_grad():
        assert told(lambda w: w.sin(), parameter()) == [False]
    torch._dynamo.reset()
    with torch.inference_mode():
        assert told(lambda w: w.sin(), parameter()) == [False]


def test_a_gradient_that_leaves_through_memory() -> None:
    def program(w: Tensor, kept: Tensor) -> None:
        kept.copy_(w.sin())

    assert told(program, parameter(), torch.zeros(3, 4)) == [True]


def test_after_autograd_it_is_the_backward_graph() -> None:
    """The forward of ``cos`` has none; of its two graphs only the backward computes a sine."""
    assert told(lambda w: w.sin().exp(), parameter(), place="after") == [False]
    torch._dynamo.reset()
    assert told(lambda w: w.cos(), parameter(), place="after") == [True]
    torch._dynamo.reset()
    with torch.no_grad():
        assert told(lambda w: w.sin(), parameter(), place="after") == [False]
