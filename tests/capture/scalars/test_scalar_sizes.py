"""Numbers read from tensors beside numbers that vary from call to call: sizes, integers given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass


def by_size(x: Tensor, step: int) -> Tensor:
    return x * ((x > 0).sum().item() / x.shape[0])


def by_at_least_one(x: Tensor, step: int) -> Tensor:
    return x * ((x > 0).sum().item() / max(1, step))


def by_more_than_size(x: Tensor, step: int) -> Tensor:
    return x * ((x > 0).sum().item() // (x.shape[0] + 1) + (x > 0).sum().item() % x.numel())


def by_step(x: Tensor, step: int) -> Tensor:
    return x * ((x > 0).sum().item() / step)


def by_difference(x: Tensor, step: int) -> Tensor:
    return x * ((x > 0).sum().item() / (x.shape[0] - 5))


def root_of_difference(x: Tensor, step: int) -> Tensor:
    return x * math.sqrt((x[:2] > 0).sum().item() + (step - 5))


def _called(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (ValueError, ZeroDivisionError) as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    ("program", "last"),
    [
        (by_size, "device"),
        (by_at_least_one, "device"),
        (by_more_than_size, "device"),
        (by_step, "keep"),
        (by_difference, "keep"),
        (root_of_difference, "keep"),
    ],
)
def test_what_may_fail_is_told_by_bounds(program: Callable[..., Any], last: str) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for size, step in ((3, 7), (4, 8), (6, 9), (5, 0), (7, 1), (5, -4)):
        x = torch.linspace(-1, 1, size)
        expected, found = _called(program, x, step), _called(compiled, x, step)
        if isinstance(expected, Tensor):
            assert torch.equal(found, expected)
        else:
            assert found == expected
    decisions = [d for d in fusepass.last_report(compiled).decisions if d.rule == "item"]
    assert {d.treatment for d in decisions[1:]} == {last}, "the first is of constant sizes"
