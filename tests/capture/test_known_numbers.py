"""Numbers that come into a frame and that plain Dynamo fails on."""

from __future__ import annotations

import torch
from torch import Tensor

from .side_by_side import side_by_side

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
