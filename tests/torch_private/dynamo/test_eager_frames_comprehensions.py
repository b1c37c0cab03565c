"""A graph break in a comprehension: the ``try`` or with-block around it holds for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.testing.compare import assert_same


def breaks_then(value: Any) -> Any:
    torch._dynamo.graph_break()
    return value


def caught(x: Tensor) -> list[Any]:
    try:
        rows = [int(breaks_then("a")) for _ in range(2)]
    except ValueError:
        rows = [3]
    return [*rows, x + 1]


def caught_in_dict(x: Tensor) -> list[Any]:
    try:
        return [{n: int(breaks_then("a")) for n in range(2)}, x]
    except ValueError:
        return [x + 1]


def caught_in_inner(x: Tensor) -> list[Any]:
    try:
        rows = [[int(breaks_then(letter)) for letter in word] for word in ("12", "3a")]
    except ValueError:
        rows = [[3]]
    return [*rows, x + 1]


def caught_in_finally(x: Tensor) -> list[Any]:
    seen = [x + 1]
    try:
        try:
            seen += [int(breaks_then("a")) for _ in range(2)]
        finally:
            seen.append(x + 2)
    except ValueError:
        seen.append(x + 3)
    return seen


def without_gradients(x: Tensor) -> list[Any]:
    with torch.no_grad():
        rows = [breaks_then(x) * n for n in range(2)]
    return [*rows, x + 1]


def around(x: Tensor) -> list[Any]:
    y = x + 1
    rows = [breaks_then(y) * n for n in range(2)]
    return [*rows, y * 2]


HANDLED = [caught, caught_in_dict, caught_in_inner, caught_in_finally, without_gradients]


@pytest.mark.parametrize("program", [*HANDLED, around], ids=lambda one: one.__name__)
def test_as_eager(program: Callable[[Tensor], list[Any]]) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        assert_same(program(x), compiled(x), "results")
    needed = [one.requires_grad for one in program(x) if isinstance(one, Tensor)]
    assert [one.requires_grad for one in compiled(x) if isinstance(one, Tensor)] == needed


def test_without_a_handler_the_rest_is_compiled() -> None:
    compiled = torch.compile(around, backend="fusepass", options={"codegen": "eager"})
    compiled(torch.ones(3))
    report = fusepass.last_report(compiled)
    assert report.graphs == 2
