"""Inputs with which calls fail or do not, and what they are called in: for tests of ``try``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .side_by_side import Outcome, side_by_side

X = torch.arange(1.0, 5.0)
IN, OUT = torch.tensor([0, 3]), torch.tensor([0, 9])
GOOD, BAD = torch.eye(3) * 2, -torch.eye(3)
SEEN: list[str] = []


def places(function: Callable[..., Any], **options: Any) -> Outcome:
    """Run with indices in range and outside, in turn."""
    return side_by_side(function, (X, IN), (X, OUT), (X * 2, IN), (X, OUT), **options)


def matrices(function: Callable[..., Any], **options: Any) -> Outcome:
    """Run with a matrix that factors and one that does not, in turn."""
    return side_by_side(function, (GOOD,), (BAD,), (GOOD,), **options)


def ends(outcome: Outcome) -> list[str]:
    """The reasons of the calls that ended a graph for a handler."""
    return [d["reason"] for d in outcome.decisions if d["rule"] == "try"]


def lookup(x: Tensor, i: Tensor) -> Tensor:
    return x[i] * 2


def deeper(x: Tensor, i: Tensor) -> Tensor:
    return lookup(x + 1, i) - 1


class Quiet:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        return None


@contextlib.contextmanager
def bare() -> Iterator[None]:
    yield
