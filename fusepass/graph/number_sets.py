"""Which numbers a tensor may hold, where that is few enough to say, and exact arithmetic on them.

What needs no rounding is the same on every device, in every order of operations and whether or not
a product and a sum are contracted into one. So a mask ``(1.0 - tril) * -1e4`` holds 0 and -1e4
wherever it is made, and ``arange(n) - 3`` whole numbers that fit the dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import torch

from fusepass.graph.exact_ops import FLOATS, NARROW, Inexact

Number = int | float
_FEW = 64
# Index arithmetic of generated kernels may run in 32 bits whatever the dtype of the tensor.
_WHOLE_LIMIT = 2**31 - 1
_MANTISSA = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


@dataclass(frozen=True)
class Numbers:
    """A set of numbers: these few, or all integers between two bounds.

    Attributes:
        few: the members, or None for the integers from ``low`` to ``high``. NaN is never one.
        low, high: bounds of the members.
    """

    few: frozenset[Number] | None
    low: Number
    high: Number


NOTHING = Numbers(frozenset(), 0, 0)  # memory nobody has written: whatever it holds will do


def these(*members: Number) -> Numbers | None:
    """A set of its members; None for NaN, which has many bit patterns, and for too many."""
    if not members or len(set(members)) > _FEW or any(m != m for m in members):
        return None
    return Numbers(frozenset(members), min(members), max(members))


def between(low: int, high: int) -> Numbers:
    """The integers from ``low`` to ``high``, both included."""
    few = frozenset(range(low, high + 1)) if high - low < _FEW else None
    return Numbers(few, low, high)


def union(*sets: Numbers | None) -> Numbers | None:
    """What may come from any of the sets; None if that cannot be said."""
    known = [s for s in sets if s is not None]
    if len(known) < len(sets) or not known:
        return None
    if all(s.few is not None for s in known):
        members = {m for s in known for m in s.few or ()}
        if len(members) <= _FEW:
            return these(*members) if members else NOTHING
    if not all(map(_whole, known)):
        return None
    return between(int(min(s.low for s in known)), int(max(s.high for s in known)))


def combined(operation: str, left: Numbers | None, right: Numbers | None) -> Numbers | None:
    """The exact results of ``add``, ``sub``, ``mul``, ``minimum`` or ``maximum``.

    None where a set is not known, or where a result is NaN.
    """
    if left is None or right is None:
        return None
    if NOTHING in (left, right):
        return NOTHING
    if left.few is not None and right.few is not None and len(left.few) * len(right.few) <= 4096:
        results = [_exactly(operation, a, b) for a, b in product(left.few, right.few)]
        if len(set(results)) <= _FEW:
            return these(*results)
    if not (_whole(left) and _whole(right)):
        return None
    corners = [
        _exactly(operation, a, b)
        for a, b in product((left.low, left.high), (right.low, right.high))
    ]
    return between(int(min(corners)), int(max(corners)))


def divided(operation: str, numbers: Numbers | None, divisor: int) -> Numbers | None:
    """Results of ``floor_divide`` or ``remainder`` by one integer other than 0."""
    if numbers is None or not _whole(numbers):
        return None
    if operation == "remainder":
        return between(min(0, divisor + 1), max(0, divisor - 1))
    ends = int(numbers.low) // divisor, int(numbers.high) // divisor
    return between(min(ends), max(ends))


def magnitude(numbers: Numbers | None) -> Numbers | None:
    """Absolute values."""
    if numbers is None or numbers.few is not None:
        return None if numbers is None else these(*map(abs, numbers.few or ()))
    return between(0, int(max(abs(numbers.low), abs(numbers.high))))


def fits(numbers: Numbers | None, dtype: torch.dtype) -> bool:
    """Whether every member is a number of that dtype, so that storing it rounds nothing.

    Denormal numbers do not count: kernels may flush them to zero. Integers have to fit 32 bits
    in any dtype.
    """
    if numbers is None:
        return False
    if dtype in _MANTISSA:
        if numbers.few is None:
            return bool(max(abs(numbers.low), abs(numbers.high)) <= 2 ** _MANTISSA[dtype])
        return all(_is_float(m, dtype) for m in numbers.few)
    if dtype is torch.bool:
        return numbers.few is not None and numbers.few <= {0, 1}
    if dtype.is_complex or not _whole(numbers):
        return False
    kind = torch.iinfo(dtype)
    low, high = max(kind.min, -_WHOLE_LIMIT), min(kind.max, _WHOLE_LIMIT)
    return bool(low <= numbers.low and numbers.high <= high)


def cast(numbers: Numbers | None, source: torch.dtype | None, dtype: torch.dtype) -> Numbers | None:
    """What numbers of one dtype (None: Python's) are once they are stored in another.

    Raises:
        Inexact: devices, or compiled code, may store them as different bits.
    """
    if source is dtype or fits(numbers, dtype):
        return numbers
    if source is not None and dtype is torch.bool:
        return these(0, 1)
    if source is None and numbers is not None and dtype in (torch.float32, torch.float64):
        return _rounded(numbers, dtype)
    whole = source is not None and source not in FLOATS
    if whole and dtype in (torch.float32, torch.float64):  # rounded once, to nearest, everywhere
        return None
    if source is not None and _widens(source, dtype):
        return numbers
    raise Inexact(f"{source or 'a number'} as {dtype} may round or overflow")


def _rounded(numbers: Numbers, dtype: torch.dtype) -> Numbers:
    """Python's numbers as everybody rounds them, once and to nearest.

    Raises:
        Inexact: one of them overflows, or becomes denormal.
    """
    stored = [float(torch.tensor(n, dtype=dtype, device="cpu")) for n in numbers.few or ()]
    found = these(*stored)
    if found is None or not fits(found, dtype) or any(map(math.isinf, stored)):
        raise Inexact(f"a number as {dtype} overflows or is denormal")
    return found


def _widens(source: torch.dtype, dtype: torch.dtype) -> bool:
    if source in FLOATS:
        return dtype is torch.float64 or (dtype is torch.float32 and source in NARROW)
    if dtype in FLOATS:
        return False
    if source is torch.bool:
        return True
    old, new = torch.iinfo(source), torch.iinfo(dtype)
    return new.min <= old.min and old.max <= new.max


def _is_float(number: Number, dtype: torch.dtype) -> bool:
    if number == 0 or math.isinf(number):
        return True
    kind = torch.finfo(dtype)
    if not kind.smallest_normal <= abs(number) <= kind.max:
        return False
    stored = torch.tensor(float(number), dtype=dtype, device="cpu")
    return float(stored) == number == float(number)


def _whole(numbers: Numbers) -> bool:
    if numbers.few is None:
        return True
    return all(math.isfinite(m) and m == int(m) for m in numbers.few)


def _exactly(operation: str, a: Number, b: Number) -> Number:
    if operation in ("minimum", "maximum"):
        return min(a, b) if operation == "minimum" else max(a, b)
    if math.isinf(a) or math.isinf(b):
        return {"add": a + b, "sub": a - b, "mul": a * b}[operation]
    x, y = Fraction(a), Fraction(b)
    result = {"add": x + y, "sub": x - y, "mul": x * y}[operation]
    if result.denominator == 1:
        return int(result)
    try:
        rounded = float(result)
    except OverflowError:
        return math.nan
    return rounded if Fraction(rounded) == result else math.nan  # NaN: no float64 holds it
