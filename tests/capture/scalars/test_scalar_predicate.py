"""Conditions on numbers read from tensors say on the device what Python would say."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusepass.capture.scalars.scalar_predicate import comes_from_items, is_read_back

from ..support.side_by_side import side_by_side

NAN, INF = float("nan"), float("inf")
COMPARISONS = [">", ">=", "<", "<=", "==", "!="]
NUMBERS: dict[torch.dtype, list[Any]] = {
    torch.float16: [0.0, -0.0, 6e-8, 0.1, 65504.0, -1.0, NAN, INF, -INF],
    torch.bfloat16: [0.0, 0.1, -0.1, 1e-38, NAN, INF],
    torch.float32: [0.0, 0.1, 1e-45, 16777216.0, NAN, -INF, 2.0],
    torch.float64: [0.1, 5e-324, 2.0**53, 2.0, INF],  # torch itself guards on NaN here
    torch.int64: [0, 1, 2, 3, -3, 2**53 + 1, 2**63 - 1, -(2**63)],
    torch.int8: [0, -128, 127, 2],
    torch.uint8: [0, 255, 2],
    torch.bool: [True, False],
}
CONSTANTS: list[Any] = [0, 0.1, 1e-8, 2, 2.5, -2.5, -1, 1e300, INF, -INF, NAN, True, 2**53, 300]


def program_of(compare: str, constant: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """``x * 2 if t.item() > constant else x - 1``, with any comparison."""
    space: dict[str, Any] = {"constant": constant}
    source = f"def program(t, x):\n    return x * 2 if t.item() {compare} constant else x - 1\n"
    exec(source, space)
    return space["program"]  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("constant", CONSTANTS, ids=repr)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_every_comparison(compare: str, constant: Any, dtype: torch.dtype) -> None:
    if constant != constant or (constant is True and not dtype.is_floating_point):
        pytest.skip("Dynamo with any backend fails on a number that varies compared with that")
    x = torch.ones(2)
    calls = [(torch.tensor(n, dtype=dtype), x) for n in NUMBERS[dtype]]
    outcome = side_by_side(program_of(compare, constant), *calls)
    assert set(outcome.treatments) <= {("where", "pure_total"), ("keep", "predicate")}


@pytest.mark.parametrize(
    ("dtype", "constant"),
    [
        (torch.float16, 1e-8),
        (torch.bfloat16, 0.1),
        (torch.float32, 0.1),
        (torch.float64, 0.1),
        (torch.int64, 2.5),
        (torch.int64, 2),
        (torch.uint8, 300),
        (torch.bool, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("compare", [">", "<="])
def test_exact(compare: str, dtype: torch.dtype, constant: Any) -> None:
    calls = [(torch.tensor(n, dtype=dtype), torch.ones(2)) for n in NUMBERS[dtype]]
    side_by_side(program_of(compare, constant), *calls).only("where", "pure_total")


@pytest.mark.parametrize(
    ("compare", "constant"),
    [
        ("==", 2.5),
        ("!=", 2.5),
        (">", INF),
        ("<", 2**63),
    ],
)
def test_integers_compared_with_what_no_integer_is(compare: str, constant: Any) -> None:
    calls = [(torch.tensor(n), torch.ones(2)) for n in NUMBERS[torch.int64]]
    outcome = side_by_side(program_of(compare, constant), *calls)
    assert set(outcome.treatments) <= {("where", "pure_total"), ("keep", "predicate")}


def difference(t: Tensor, x: Tensor) -> Tensor:
    # In half precision the difference would be 0.
    if t.item() - 0.1 > 1e-6:
        return x * 2
    return x - 1


def product_of_two(t: Tensor, x: Tensor) -> Tensor:
    # In half precision the product would be infinite.
    if t.item() * t.item() > 1e5:
        return x * 2
    return x - 1


def negative(t: Tensor, x: Tensor) -> Tensor:
    if -t.item() < -0.1:
        return x * 2
    return x - 1


def negated(t: Tensor, x: Tensor) -> Tensor:
    if not t.item() > 0.1:
        return x * 2
    return x - 1


def truth(t: Tensor, x: Tensor) -> Tensor:
    if t.item():
        return x * 2
    return x - 1


@pytest.mark.parametrize("program", [difference, product_of_two, negative, negated, truth])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_arithmetic_in_doubles(program: Callable[[Tensor, Tensor], Tensor], dtype: Any) -> None:
    numbers = [*NUMBERS[dtype], 300.0, 320.0, 0.1001]
    calls = [(torch.tensor(n, dtype=dtype), torch.ones(2)) for n in numbers]
    side_by_side(program, *calls).only("where", "pure_total")


def sum_of_integers(t: Tensor, x: Tensor) -> Tensor:
    if t.item() + 1 > 0:
        return x * 2
    return x - 1


def negative_integer(t: Tensor, x: Tensor) -> Tensor:
    # -(-2**63) is no 64-bit integer.
    if -t.item() > 0:
        return x * 2
    return x - 1


def integer_of_float(t: Tensor, x: Tensor) -> Tensor:
    if int(t.double()) > 0:
        return x * 2
    return x - 1


@pytest.mark.parametrize("program", [sum_of_integers, negative_integer, integer_of_float])
def test_kept_where_it_could_overflow_or_raise(program: Callable[..., Tensor]) -> None:
    calls = [(torch.tensor(n), torch.ones(2)) for n in NUMBERS[torch.int64]]
    outcome = side_by_side(program, *calls)
    assert set(outcome.treatments) == {("keep", "predicate")}, outcome.decisions


def test_predicates_computed_from_items_only() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    item = graph.call_method("item", (x,))
    other = graph.call_method("item", (x,))
    both = graph.call_function(operator.add, (item, other))
    mixed = graph.call_function(operator.add, (item, x))
    assert is_read_back(item)
    assert not is_read_back(x)
    assert comes_from_items(graph.call_function(operator.gt, (both, 1)))
    assert not comes_from_items(mixed)
    assert not comes_from_items(x)
    assert not comes_from_items(graph.call_function(operator.add, (1, 2)))
