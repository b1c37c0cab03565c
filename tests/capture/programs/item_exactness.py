# ruff: noqa: E712
"""Python's comparisons of numbers read from tensors: exact, in doubles and whole numbers.

Most of these come out differently in the dtype of the tensor (``0 < 1e-8`` in half precision).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..support.inputs import InputSets, cases
from ..support.program import FREE, WHERE, Family

FAMILY = Family("item_exactness")
NAN, INF = float("nan"), float("inf")


def values(dtype: torch.dtype, *numbers: Any) -> Callable[[int], InputSets]:
    """A tensor to compute with, and a number, once for each of the numbers."""
    return cases(
        lambda: [(torch.arange(3.0), torch.tensor(n, dtype=dtype)) for n in (*numbers, *numbers)]
    )


# name: how the number is tested, its dtype, numbers that come out both ways.
EXACT: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], torch.dtype, tuple[Any, ...]]] = {
    "half_above_tiny": (
        lambda x, t: x * 2 if t.item() > 1e-8 else x - 1,
        torch.float16,
        (6e-8, 0.0, 1.0),
    ),
    "half_nothing_below_tiny": (
        lambda x, t: x * 2 if t.item() < 1e-8 else x - 1,
        torch.float16,
        (6e-8, 0.0, -1.0),
    ),
    "half_tenth": (
        lambda x, t: x * 2 if t.item() == 0.1 else x - 1,
        torch.float64,
        (0.1, 0.1000000001),
    ),
    "float_is_no_tenth": (
        lambda x, t: x * 2 if t.item() > 0.1 else x - 1,
        torch.float32,
        (0.1, 0.0999),
    ),
    "bfloat_above_tenth": (
        lambda x, t: x * 2 if t.item() > 0.1 else x - 1,
        torch.bfloat16,
        (0.1, 0.09),
    ),
    "half_below_overflow": (
        lambda x, t: x * 2 if t.item() < 1e6 else x - 1,
        torch.float16,
        (6e4, INF),
    ),
    "float_below_huge": (
        lambda x, t: x * 2 if t.item() < 1e300 else x - 1,
        torch.float32,
        (1.0, INF, NAN),
    ),
    "float_and_long_constant": (
        lambda x, t: x * 2 if t.item() >= 16777217 else x - 1,
        torch.float32,
        (16777216.0, 2e7),
    ),
    "integer_and_fraction": (
        lambda x, t: x * 2 if t.item() > 2.5 else x - 1,
        torch.int64,
        (2, 3, -3),
    ),
    "integer_below_fraction": (
        lambda x, t: x * 2 if t.item() <= 2.5 else x - 1,
        torch.int64,
        (2, 3),
    ),
    "integer_from_fraction": (
        lambda x, t: x * 2 if t.item() >= -2.5 else x - 1,
        torch.int64,
        (-2, -3),
    ),
    "fraction_above_integer": (
        lambda x, t: x * 2 if 2.5 > t.item() else x - 1,
        torch.int32,
        (2, 3),
    ),
    "integer_beyond_doubles": (
        lambda x, t: x * 2 if t.item() > 2.0**53 else x - 1,
        torch.int64,
        (2**53 + 1, 2**53),
    ),
    "uint8_and_negative": (
        lambda x, t: x * 2 if t.item() > -1 and t.item() < 256 else x - 1,
        torch.uint8,
        (0, 255),
    ),
    "uint8_and_more": (lambda x, t: x * 2 if t.item() > 300 else x - 1, torch.uint8, (255, 44)),
    "truth_value_as_integer": (
        lambda x, t: x * 2 if t.item() > 0 else x - 1,
        torch.bool,
        (True, False),
    ),
    "truth_value_is_true": (
        lambda x, t: x * 2 if t.item() == True else x - 1,
        torch.bool,
        (True, False),
    ),
    "nan_equals_nothing": (
        lambda x, t: x * 2 if t.item() == t.item() else x - 1,
        torch.float32,
        (NAN, 1.0),
    ),
    "nan_is_true": (
        lambda x, t: x * 2 if t.item() else x - 1,
        torch.float32,
        (NAN, 0.0, -0.0, 2.0),
    ),
    "nan_not_above": (
        lambda x, t: x * 2 if not t.item() > 0 else x - 1,
        torch.float32,
        (NAN, 1.0, -1.0),
    ),
    "nan_below_or_above": (
        lambda x, t: x * 2 if -1 < t.item() < 1 else x - 1,
        torch.float32,
        (NAN, 0.0, 2.0),
    ),
    "infinity": (
        lambda x, t: x * 2 if t.item() == INF else x - 1,
        torch.float32,
        (INF, -INF, 3e38),
    ),
    "negative_zero": (lambda x, t: x * 2 if t.item() == 0 else x - 1, torch.float32, (-0.0, 1e-45)),
    "subnormal": (lambda x, t: x * 2 if t.item() else x - 1, torch.float32, (1e-45, 0.0)),
    "float_of": (lambda x, t: x * 2 if float(t) > 1e-8 else x - 1, torch.float16, (6e-8, 0.0)),
    "float_of_integer": (lambda x, t: x * 2 if float(t) > 0.5 else x - 1, torch.int64, (1, 0)),
    "bool_of": (lambda x, t: x * 2 if bool(t) else x - 1, torch.float16, (6e-8, 0.0, NAN)),
    "bool_of_comparison": (
        lambda x, t: x * 2 if bool(t > 0) else x - 1,
        torch.float32,
        (1.0, -1.0),
    ),
    "bool_is_true": (lambda x, t: x * 2 if bool(t) == True else x - 1, torch.float32, (2.0, 0.0)),
    "difference": (lambda x, t: x * 2 if t.item() - 0.1 > 0 else x - 1, torch.float32, (0.1, 0.09)),
    "sum_of_doubles": (
        lambda x, t: x * 2 if t.item() + 1e-8 > 1 else x - 1,
        torch.float32,
        (1.0, 0.5),
    ),
    "product": (
        lambda x, t: x * 2 if t.item() * 3 == 0.1 * 3 else x - 1,
        torch.float64,
        (0.1, 0.2),
    ),
    "negative": (lambda x, t: x * 2 if -t.item() < -0.1 else x - 1, torch.float32, (0.1, 0.09)),
    "absolute": (lambda x, t: x * 2 if abs(t.item()) > 0.1 else x - 1, torch.float32, (-0.1, 0.09)),
    "square_without_overflow": (
        lambda x, t: x * 2 if t.item() * t.item() < 1e10 else x - 1,
        torch.float16,
        (300.0, INF),
    ),
}
for name, (program, dtype, numbers) in EXACT.items():
    FAMILY.add(
        f"exact_{name}",
        lambda program=program: program,
        values(dtype, *numbers),
        FREE
        if name == "absolute"  # what abs() is given is not followed
        else WHERE,
        jumps=True,
        one_sided=True,
        tags="inductor" if name in {"half_above_tiny", "nan_is_true"} else "",
    )
