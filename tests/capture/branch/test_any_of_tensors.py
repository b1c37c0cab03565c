"""``any`` and ``all`` of a generator expression over tensors: one graph, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..support.side_by_side import side_by_side, signed

TURNS = [*signed(1.0, -0.5, 2.0), (torch.tensor([1.0, float("nan"), 2.0]),)]


def any_nan(x: Tensor) -> Tensor:
    if any(torch.isnan(part).any() for part in (x, x * 2)):
        return x * 0
    return x + 1


def all_finite(x: Tensor) -> tuple[Tensor, bool]:
    ok = all(part.isfinite().all() for part in [x, x.exp()])
    return x * 2, ok


def not_any(x: Tensor) -> Tensor:
    parts = {"a": x, "b": x - 1}
    if not any((part.sum() > 1).any() for part in parts.values()) and x.max() > 1:
        x = x.clamp(max=1.0)
    return x


def raises_unless_all(x: Tensor) -> Tensor:
    if not all((part > -3).all() for part in (x, x + 1)):
        raise ValueError("too small")
    return x.sqrt()


def two_tests_of_each(x: Tensor) -> Tensor:
    if any(torch.isnan(part).any() or part.max() > 1.5 for part in (x, x * 2)):
        return x * 0
    return x + 1


def one_of_two_for_each(x: Tensor) -> Tensor:
    return x if all((part.min() if part.sum() > 0 else part.max()) > 0 for part in (x, -x)) else -x


def of_one_element(x: Tensor) -> Tensor:
    return x * 2 if any(part.sum(0, keepdim=True) for part in (x - x, x.relu())) else x


def of_none(x: Tensor) -> tuple[Tensor, bool, bool]:
    rest: list[Tensor] = []
    some, every = any(part.any() for part in rest), all(part.any() for part in rest)
    return x * 2, some, every


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "program",
    [any_nan, not_any, raises_unless_all, of_one_element, two_tests_of_each, one_of_two_for_each],
)
def test_one_graph(program: Callable[[Tensor], Any], grad: bool) -> None:
    outcome = side_by_side(program, *TURNS, grad=grad)
    assert "keep" not in {treatment for treatment, _ in outcome.treatments}, outcome.decisions
    assert outcome.breaks == []


@pytest.mark.parametrize("program", [all_finite, of_none])
def test_as_a_result(program: Callable[[Tensor], Any]) -> None:
    assert side_by_side(program, *TURNS).breaks == []


def test_parameters_of_a_module() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))

    def program(x: Tensor) -> Tensor:
        if any((p.abs() > 0.5).any() for p in model.parameters()):
            x = x * 0.5
        return model(x)  # type: ignore[no-any-return]

    outcome = side_by_side(program, *TURNS)
    assert outcome.breaks == []


def of_several_elements(x: Tensor) -> Tensor:
    return x * 2 if any(part > 0 for part in (x, x + 1)) else x


def a_later_test_would_fail(x: Tensor) -> Tensor:
    return x * 2 if any(part.max() > 0.1 for part in (x, x[:0])) else x


def filtered(x: Tensor) -> Tensor:
    return x * 2 if any(part.max() > 1 for part in (x, -x) if part.sum() > 0) else x


def has_an_effect(x: Tensor) -> tuple[Tensor, list[int]]:
    seen: list[int] = []
    if any((seen.append(1) or part.sum()) > 0 for part in (x, -x, x * 2)):
        x = x * 2
    return x, seen


@pytest.mark.parametrize(
    "program", [of_several_elements, a_later_test_would_fail, filtered, has_an_effect]
)
def test_as_in_eager_where_later_tests_must_not_be_made(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *TURNS)
