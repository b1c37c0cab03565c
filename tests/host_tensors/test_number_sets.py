"""Sets of numbers a tensor may hold, and what can be stored without rounding."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from fusepass.host_tensors.exact_ops import Inexact
from fusepass.host_tensors.value_sets import (
    NOTHING,
    NumberSet,
    apply_binary,
    apply_division,
    between,
    cast,
    fits,
    magnitude,
    set_of,
    union,
)

INF = math.inf
SETS = [
    set_of(0), set_of(0, 1), set_of(-10000.0, 0.5), set_of(INF, 0), set_of(-INF, 1), set_of(3.0, -7),
    between(0, 99), between(-70, 2), between(5, 5), NOTHING,
]  # fmt: skip


def members(numbers: NumberSet | None) -> list[float]:
    assert numbers is not None
    if numbers.members is None:
        return list(range(int(numbers.low), int(numbers.high) + 1))
    return sorted(numbers.members)


def holds(numbers: NumberSet, number: float) -> bool:
    if numbers.members is None:
        return number == int(number) and numbers.low <= number <= numbers.high
    return number in numbers.members


@pytest.mark.parametrize("operation", ["add", "sub", "mul", "minimum", "maximum"])
@pytest.mark.parametrize(("left", "right"), itertools.product(SETS, SETS))
def test_every_result_is_in_the_set(operation: str, left: NumberSet, right: NumberSet) -> None:
    found = apply_binary(operation, left, right)
    function = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "minimum": min, "maximum": max,
    }[operation]  # fmt: skip
    results = [function(a, b) for a in members(left) for b in members(right)]
    if found is None:
        both = [*results, *members(left), *members(right)]
        assert any(not math.isfinite(m) or m != int(m) for m in both)
    else:
        assert all(holds(found, result) for result in results)


@pytest.mark.parametrize("divisor", [1, 3, 7, -2])
@pytest.mark.parametrize("numbers", [between(0, 99), between(-7, 3), set_of(-5, 12)])
def test_divisions(numbers: NumberSet, divisor: int) -> None:
    for operation, of in (("floor_divide", int.__floordiv__), ("remainder", int.__mod__)):
        found = apply_division(operation, numbers, divisor)
        assert found is not None
        assert all(holds(found, of(int(m), divisor)) for m in members(numbers))
    assert apply_division("remainder", set_of(0.5), 2) is None


def test_unions_and_magnitudes() -> None:
    assert members(union(set_of(0), set_of(1, 0.5))) == [0, 0.5, 1]
    assert union(between(0, 99), set_of(-1)) == between(-1, 99)
    assert union(between(0, 99), set_of(0.5)) is None
    assert members(union(between(0, 2), set_of(0.5))) == [0, 0.5, 1, 2]
    assert union(set_of(1), None) is None
    assert union(NOTHING, NOTHING) == NOTHING
    assert union(set_of(*range(40)), set_of(*range(40, 90))) == between(0, 89)
    assert members(magnitude(set_of(-2.5, 1))) == [1, 2.5]
    assert magnitude(between(-7, 3)) == between(0, 7)
    assert magnitude(between(-99, 3)) == between(0, 99)


def test_nan_is_in_no_set() -> None:
    assert set_of(math.nan) is None
    assert apply_binary("mul", set_of(INF), set_of(0)) is None
    assert apply_binary("sub", set_of(INF), set_of(INF)) is None
    assert set_of(*range(65)) is None


@pytest.mark.parametrize(
    ("numbers", "dtype", "expected"),
    [
        (set_of(0.5, -65504.0), torch.float16, True),
        (set_of(65536.0), torch.float16, False),
        (set_of(1.0 / 3), torch.float32, False),
        (set_of(1.0 / 3), torch.float64, True),
        (set_of(257), torch.bfloat16, False),
        (set_of(256, -INF), torch.bfloat16, True),
        (set_of(1e-7), torch.float16, False),  # denormal
        (set_of(2.0**-149), torch.float32, False),  # denormal
        (between(0, 2**24), torch.float32, True),
        (between(0, 2**24 + 1), torch.float32, False),
        (between(-2048, 2048), torch.float16, True),
        (between(0, 2049), torch.float16, False),
        (between(0, 255), torch.uint8, True),
        (between(-1, 255), torch.uint8, False),
        (set_of(0.5), torch.int64, False),
        (set_of(INF), torch.int64, False),
        (set_of(2**31 - 1), torch.int64, True),
        (set_of(2**31), torch.int64, False),  # compiled code may compute it in 32 bits
        (set_of(0, 1), torch.bool, True),
        (set_of(2), torch.bool, False),
        (set_of(1), torch.complex64, False),
        (NOTHING, torch.float16, True),
        (None, torch.float32, False),
    ],
)
def test_fits(numbers: NumberSet | None, dtype: torch.dtype, expected: bool) -> None:
    assert fits(numbers, dtype) is expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e5, 3e38, 1e39, 7.5, 2049.0, 257.0, 1e-8, 1e-40])
def test_what_fits_is_stored_as_it_is(number: float, dtype: torch.dtype) -> None:
    stored = float(torch.tensor(number, dtype=dtype))
    normal = abs(number) >= torch.finfo(dtype).smallest_normal
    assert fits(set_of(number), dtype) is (stored == number and normal)


@pytest.mark.parametrize(
    ("numbers", "source", "dtype"),
    [
        (None, torch.float32, torch.float16),
        (set_of(0.1), torch.float32, torch.bfloat16),
        (None, torch.float32, torch.int64),
        (set_of(300), torch.int64, torch.uint8),
        (None, torch.int64, torch.int32),
        (None, torch.int64, torch.float16),
        (between(0, 5000), torch.int64, torch.float16),
        (None, torch.float64, torch.float32),
        (set_of(0.1), None, torch.float16),
        (set_of(1e39), None, torch.float32),
        (set_of(math.pi), None, torch.int32),
        (None, None, torch.float32),
    ],
)
def test_casts_that_may_round(
    numbers: NumberSet | None, source: torch.dtype | None, dtype: torch.dtype
) -> None:
    with pytest.raises(Inexact):
        cast(numbers, source, dtype)


def test_casts_that_do_not() -> None:
    assert cast(set_of(-INF, 0), torch.float32, torch.float16) == set_of(-INF, 0)
    assert cast(None, torch.int64, torch.float32) is None  # rounded alike everywhere
    assert cast(None, torch.float16, torch.float32) is None
    assert cast(None, torch.float32, torch.bool) == set_of(0, 1)
    assert cast(None, torch.uint8, torch.int16) is None
    third = cast(set_of(1 / 3), None, torch.float32)
    assert members(third) == [float(torch.tensor(1 / 3))]
