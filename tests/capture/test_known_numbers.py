"""Numbers that come into a frame and that plain Dynamo fails on."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from .support.side_by_side import side_by_side

X = torch.tensor([1.0, -0.5, 2.0])


def with_numbers(x: Tensor, a: float, b: float) -> tuple[Tensor, float, float, float, bool]:
    a += b
    c = a + 1
    d = a * 0 if a < b else max(a, c)
    return c * x, d, min(d, 2.0), min(b, d), a == a


def test_not_a_number_comes_into_a_frame_that_takes_any_float() -> None:
    nan, inf = float("nan"), float("inf")
    pairs = [(1.0, 2.0), (3.0, 4.0), (5.0, nan), (nan, 7.0), (nan, nan), (inf, 2.0), (2.0, 3.0)]
    side_by_side(with_numbers, *[(X, a, b) for a, b in pairs])


def read_in_two(x: Tensor) -> Tensor:
    first, second = x[:2].tolist()
    torch._dynamo.graph_break()
    first += second
    return (first + 1) * x


def test_not_a_number_is_read_in_front_of_a_break() -> None:
    nan = float("nan")
    values = [[1.0, 2.0], [3.0, 4.0], [5.0, nan], [nan, 7.0], [nan, nan]]
    side_by_side(read_in_two, *[(torch.tensor(one),) for one in values])


def truth_and_count(x: Tensor, flag: bool, count: int) -> tuple[Tensor, int, float]:
    return x + (flag + count) * 0.1, count - flag, flag * (count / 4)


def test_a_truth_value_is_added_to_a_number_that_varies() -> None:
    pairs = [(True, 2), (True, 3), (False, 4), (True, 5), (False, 6)]
    side_by_side(truth_and_count, *[(X, flag, count) for flag, count in pairs])


def power(x: Tensor, a: float) -> Tensor:
    return x * (a**2) + a


def test_the_power_of_a_negative_float_that_varies_breaks_the_graph() -> None:
    values = [1e39, 0.1, -2.0, 1e-300, float("nan"), -0.5, 3.0]
    side_by_side(power, *[(X, value) for value in values])


def warned_behind(x: Tensor, c: int) -> Tensor:
    y = x * (x <= c)
    print("careful")  # noqa: T201 - what the program does
    return y


def branched(x: Tensor, c: int) -> Tensor:
    return x + c if x.sum() > 0 else x - 1


def raising(x: Tensor, c: int) -> Tensor:
    if x.sum() > 0:
        raise ValueError("positive")
    return x + c


@pytest.mark.parametrize("program", [warned_behind, branched, raising])
def test_an_integer_of_more_than_64_bits(program: Callable[..., Tensor]) -> None:
    """An operation fails on it: in eager before the warning, and only in the arm that is taken."""
    numbers = [3, 4, 5, 10**39, -(10**39), 2**63, -(2**63), 7]
    calls = [(x, n) for n in numbers for x in (X, -X)]
    if program is raising:  # what fails while it is traced raises Dynamo's TorchRuntimeError
        calls = [(x, n) for x, n in calls if x is X or abs(n) < 8]
    side_by_side(program, *calls)


def asserted_last(x: Tensor, level: Tensor) -> Tensor:
    for _ in range(2):
        x = x + 1
        warnings.warn(f"sum {x.sum()}", stacklevel=1)
    assert int(level) <= 0
    return x


def test_an_assert_of_a_number_that_is_known_by_then() -> None:
    """With torch 2.11 Dynamo went on behind its own break, and raised an error of its own."""
    side_by_side(asserted_last, *[(X, torch.tensor(n)) for n in (1.5, 0.0, -2.0, 3.0)])
