"""Functions that were compiled outside a ``try``, called inside one by code in eager mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

from .support.side_by_side import side_by_side
from .support.tried import IN, OUT, X, lookup


def printed(x: Tensor, i: Tensor) -> Tensor:
    print("before", x.sum())  # noqa: T201
    return x[i] * 2


def first_outside(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    for _ in range(2):
        torch._dynamo.graph_break()
        y = lookup(x, j)
    try:
        y = lookup(x, i)
    except IndexError as error:
        y = x - len(str(error))
    return y


def first_outside_printed(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    for _ in range(2):
        torch._dynamo.graph_break()
        y = printed(x, j)
    with contextlib.suppress(IndexError):
        y = printed(x, i)
    return y


def other_class_first(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    y = x
    for _ in range(2):
        torch._dynamo.graph_break()
        try:
            y = lookup(x, j)
        except KeyError:
            y = x
    try:
        y = lookup(x, i)
    except LookupError:
        y = x - 1
    return y


PROGRAMS = [first_outside, first_outside_printed, other_class_first]


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_handler_sees_the_error(program: Callable[..., Any], codegen: str) -> None:
    calls = (X, IN, IN), (X, OUT, IN), (X * 2, IN, IN), (X, OUT, IN)
    outcome = side_by_side(program, *calls, codegen=codegen)
    assert any(d["rule"] == "try" for d in outcome.decisions)


def harmless(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    y = x
    for _ in range(2):
        torch._dynamo.graph_break()
        y = lookup(x, j)
        with torch.no_grad():
            y = lookup(x, i)
        try:
            y = y + lookup(x, j)
        except ZeroDivisionError:
            y = x
        finally:
            y = y * 2
    return y


def total(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    y = x
    for _ in range(2):
        torch._dynamo.graph_break()
        y = _sines(x)
        with contextlib.suppress(Exception):
            y = _sines(x)
    return y


def _sines(x: Tensor) -> Tensor:
    return x.sin() * 2


@pytest.mark.parametrize("program", [harmless, total], ids=lambda p: p.__name__)
def test_calls_outside_of_try_blocks_are_compiled_once(program: Callable[..., Any]) -> None:
    with torch.no_grad():
        outcome = side_by_side(program, (X, IN, IN), (X * 2, IN, IN), (X, IN, IN))
    assert [d for d in outcome.decisions if d["rule"] == "try"] == []
    assert len(outcome.graphs) == 1


def inside_only(x: Tensor, i: Tensor) -> Tensor:
    y = x
    for _ in range(2):
        torch._dynamo.graph_break()
        try:
            y = lookup(x, i)
        except IndexError:
            y = x - 1
    return y


def test_compiled_by_itself_first() -> None:
    fusepass.reset()
    options = {"codegen": "inductor"}
    alone, within = (
        torch.compile(f, backend="fusepass", options=options) for f in (lookup, inside_only)
    )
    assert torch.equal(alone(X, IN), lookup(X, IN))
    for i in (IN, OUT, IN):
        assert torch.equal(within(X, i), inside_only(X, i))
    with contextlib.suppress(IndexError):  # outside of what is compiled no handler counts
        alone(X, IN)
