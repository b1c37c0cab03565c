"""Small sets of numbers that a tensor of a chain may hold, and exact arithmetic on them.

A call that rounds nothing gives the same bits on every device, in every order of operations, with
and without contraction into an FMA. A mask ``(1.0 - tril) * -1e4`` holds 0 and -1e4 wherever it is
made, and ``arange(n) - 3`` holds whole numbers that fit the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import torch
from torch import fx

from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.ops.op_names import argument, op_name, tensor_value, where_parts
from fusepass.graph.ops.schemas import is_number
from fusepass.host_tensors.exact_ops import (
    ARITHMETIC,
    BITS,
    CASTS,
    COMPARISONS,
    DTYPES,
    EXCLUDED,
    FILLS,
    FLOATS,
    FROM_NUMBER,
    FULL,
    LOGIC,
    NARROW,
    PLACES,
    Inexact,
)
from fusepass.torch_private.fx.graph_constants import as_int
from fusepass.torch_private.fx.graphs import known_equal, storage_key

# The bounds of a symbolic size, or None if they are not to be relied on.
Bound = Callable[[torch.SymInt], tuple[int, int] | None]


class ValueSets:
    """Which numbers each memory of a chain may hold, learned node after node in program order.

    Args:
        bound: tells the bounds of symbolic sizes.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._numbers: dict[int | None, NumberSet | None] = {}

    def admit(self, node: fx.Node) -> None:
        """Learn what a node leaves behind; Inexact if another device may give other bits."""
        name = op_name(node) or "?"
        in_place = name == "setitem" or name == "__setitem__" or _writes(name)
        written = node.args[0] if in_place else node
        dtypes = {value.dtype for value in _tensors(written)}
        if not dtypes <= DTYPES or "out" in node.kwargs:
            raise Inexact(f"{name} gives {', '.join(map(str, dtypes))}, or writes to out=")
        numbers = self._written(name, node) if in_place else self._result_of(name, node)
        for dtype in dtypes:
            numbers = set_of(0, 1) if dtype is torch.bool else numbers
            if dtype in NARROW and not fits(numbers, dtype):
                raise Inexact(f"{name} may round to {dtype}, which compiled code does not")
        for key in {storage_key(part) for part in _tensors(written)}:
            self._numbers[key] = numbers

    def set_from_value(self, node: fx.Node, value: torch.Tensor) -> None:
        """Learn the numbers of a node from its value."""
        numbers = None
        if value.dtype in DTYPES and value.numel() > 0:
            low, high = value.min().item(), value.max().item()
            distinct = value.unique() if value.numel() <= 4096 else value[:0]
            numbers = set_of(*distinct.tolist())
            if numbers is None and value.dtype not in FLOATS:
                numbers = between(int(low), int(high))
        self._numbers[memory_of(node)] = numbers

    def forget(self, node: fx.Node) -> None:
        """Take what a node leaves behind for unknown."""
        in_place = _writes(op_name(node) or "")
        for part in _tensors(node.args[0] if in_place else node):
            self._numbers[storage_key(part)] = None

    def of(self, value: object, dtype: torch.dtype | None = None) -> NumberSet | None:
        """Numbers of an operand: a tensor's, or the number itself (symbolic sizes by their bound).

        Raises Inexact if storing them in ``dtype`` may round.
        """
        found, source = self._operand(value)
        return found if dtype is None else cast(found, source, dtype)

    def _operand(self, value: object) -> tuple[NumberSet | None, torch.dtype | None]:
        tensor = tensor_value(value)
        if tensor is not None:
            if tensor.dtype is torch.bool:
                return set_of(0, 1), tensor.dtype
            return self._numbers.get(memory_of(value)), tensor.dtype
        if isinstance(value, fx.Node):
            value = value.meta.get("example_value")
        if isinstance(value, torch.SymInt):
            static = as_int(value)
            bounds = (static, static) if static is not None else self._bound(value)
            return (None if bounds is None else between(*bounds)), torch.int64
        if isinstance(value, (int, float)):
            return set_of(value), None
        raise Inexact(f"{type(value).__name__} as an operand")

    def _result_of(self, name: str, node: fx.Node) -> NumberSet | None:
        value = _tensors(node)[0]
        if name in FILLS:
            fill = FILLS[name]
            return NOTHING if fill is None else set_of(fill)
        if name in FULL:
            number = argument(node, FULL[name], "s" if name == "scalar_tensor" else "fill_value")
            return self.of(number, value.dtype)
        if name in FROM_NUMBER and is_number(argument(node, 0, "data")):
            return self.of(argument(node, 0, "data"), value.dtype)
        if name == "arange":
            return self._arange(node, value.dtype)
        if name == "eye":
            return set_of(0, 1)
        if name in CASTS or (name == "tensor" and tensor_value(node.args[0]) is not None):
            return self.of(node.args[0], value.dtype)
        if name == "getitem" or name == "__getitem__":
            _check_index(node.args[1])
            return self._union_of(node.args[0])
        if name == "getattr" and node.args[1] in ("T", "mT"):
            return self.of(node.args[0])
        if name in PLACES:
            sources = [node.args[0]] if name.endswith("_as") else node.all_input_nodes
            if {part.dtype for source in sources for part in _tensors(source)} != {value.dtype}:
                raise Inexact(f"{name} from one dtype to another")
            return self._union_of(*sources)
        return self._computed(name, node, value.dtype)

    def _union_of(self, *sources: object) -> NumberSet | None:
        parts = [part for source in sources for part in _tensors(source)]
        known = [self._numbers.get(storage_key(p)) for p in parts]
        return union(*known) if known else None

    def _computed(self, name: str, node: fx.Node, dtype: torch.dtype) -> NumberSet | None:
        """Selections, comparisons, logic, arithmetic and reductions, out of place or in place."""
        if name in ("tril", "triu"):
            return union(self.of(node.args[0]), set_of(0))
        if name == "masked_fill":
            return union(self.of(node.args[0]), self.of(argument(node, 2, "value"), dtype))
        if name == "where":
            parts = where_parts(node)
            if parts is None:
                raise Inexact(EXCLUDED["nonzero"])
            return union(*(self.of(part, dtype) for part in parts[1:]))
        if name in COMPARISONS:
            return self._compared(name, node)
        if name in LOGIC:
            return set_of(0, 1)
        if name in BITS:
            if dtype in FLOATS:
                raise Inexact(f"{name} of floating point numbers")
            return None
        if name in ("any", "all"):
            return set_of(0, 1)
        if name in ("amax", "amin"):
            return self.of(node.args[0])
        if name in ("sum", "cumsum"):
            return self._summed(name, node, dtype)
        return self._arithmetic(name, node, dtype)

    def _compared(self, name: str, node: fx.Node) -> NumberSet | None:
        operands = [argument(node, 0, "input"), argument(node, 1, "other")]
        dtypes = {v.dtype for v in map(tensor_value, operands) if v is not None}
        for operand in operands:
            if tensor_value(operand) is None:
                for dtype in dtypes - {torch.bool}:
                    self._check_fits(self.of(operand), dtype, name)
        if len(dtypes) > 1:  # promoted to a common dtype, which may round
            for operand in operands:
                self._check_fits(self.of(operand), torch.float32, name)
        return set_of(0, 1)

    def _arithmetic(self, name: str, node: fx.Node, dtype: torch.dtype) -> NumberSet | None:
        if name in ("neg", "abs"):
            source = self.of(node.args[0])
            found = apply_binary("sub", set_of(0), source) if name == "neg" else magnitude(source)
        elif name in ("clamp", "clamp_min", "clamp_max"):
            found = self._clamped(name, node)
        elif name in ("floor_divide", "remainder"):
            divisor = argument(node, 1, "other")
            if not isinstance(divisor, int) or divisor == 0 or dtype in FLOATS:
                raise Inexact(f"{name} that is not of integers by one that is known")
            found = apply_division(name, self.of(node.args[0]), divisor)
        elif name in ARITHMETIC and set(node.kwargs) <= {"input", "other"}:
            operands = (argument(node, 0, "input"), argument(node, 1, "other"))
            if dtype is torch.bool:
                raise Inexact(f"{name} of truth values")
            found = apply_binary(name, *(self.of(operand, dtype) for operand in operands))
        else:
            why = EXCLUDED.get(name.rstrip("_"), "whether it is exact is not known")
            raise Inexact(f"{name}: {why}")
        self._check_fits(found, dtype, name)
        return found

    def _clamped(self, name: str, node: fx.Node) -> NumberSet | None:
        low = argument(node, 1, "min") if name != "clamp_max" else None
        high = argument(node, 2 if name == "clamp" else 1, "max") if name != "clamp_min" else None
        found = self.of(node.args[0])
        if low is not None:
            found = apply_binary("maximum", found, self.of(low))
        return found if high is None else apply_binary("minimum", found, self.of(high))

    def _summed(self, name: str, node: fx.Node, dtype: torch.dtype) -> NumberSet | None:
        source = _tensors(node.args[0])[0]
        if dtype in FLOATS or source.dtype in FLOATS:
            raise Inexact(f"{name}: {EXCLUDED['matmul']}")
        dim = argument(node, 1, "dim")
        count = self.of(source.shape[dim] if isinstance(dim, int) else source.numel())
        single = union(self.of(node.args[0]), set_of(0))
        found = apply_binary("mul", single, count)
        self._check_fits(found, dtype, name)
        return None if found is None else between(int(found.low), int(found.high))

    def _arange(self, node: fx.Node, dtype: torch.dtype) -> NumberSet | None:
        given = list(node.args)
        if len(given) == 1 and "end" not in node.kwargs:
            given.insert(0, 0)
        named = [node.kwargs[k] for k in ("start", "end", "step")[len(given) :] if k in node.kwargs]
        if not given and "start" not in node.kwargs:
            named.insert(0, 0)
        start, end, step = [*given, *named, 1][:3]
        if not isinstance(step, int) or isinstance(step, bool) or step == 0:
            raise Inexact(f"arange: {EXCLUDED['linspace']}")
        first, last = self.of(start), self.of(end)
        found = union(first, last)
        if found is not None and found.members is not None:
            whole = all(m == int(m) for m in found.members)
            found = between(int(found.low), int(found.high)) if whole else None
        if dtype in FLOATS or abs(step) != 1 or not fits(first, torch.int32):
            self._check_fits(found, dtype, "arange")
        return found if fits(found, dtype) else None

    def _written(self, name: str, node: fx.Node) -> NumberSet | None:
        target, old = tensor_value(node.args[0]), self.of(node.args[0])
        if target is None:
            raise Inexact(f"{name} on what is no tensor")
        if name == "setitem" or name == "__setitem__":
            _check_index(node.args[1])
            return union(old, self.of(node.args[2], target.dtype))
        if name in ("zero_", "fill_", "copy_"):
            new = set_of(0) if name == "zero_" else self.of(node.args[1], target.dtype)
            return new if _is_whole(node.args[0]) else union(old, new)
        if name == "fill_diagonal_":
            return union(old, self.of(argument(node, 1, "fill_value"), target.dtype))
        return union(old, self._computed(name[:-1], node, target.dtype))

    def _check_fits(self, numbers: NumberSet | None, dtype: torch.dtype, name: str) -> None:
        if not fits(numbers, dtype):
            raise Inexact(f"{name} may round or overflow in {dtype}")


def _tensors(node: object) -> list[torch.Tensor]:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _writes(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _check_index(index: object) -> None:
    for part in index if isinstance(index, tuple) else (index,):
        if tensor_value(part) is not None or isinstance(part, (list, bool)):
            raise Inexact(f"indexing by a tensor: {EXCLUDED['gather']}")


def _is_whole(node: object) -> bool:
    """Whether a tensor covers all of its memory, so that writing it leaves nothing of the old."""
    value = tensor_value(node)
    if value is None:
        return False
    held = value.untyped_storage().nbytes()
    return known_equal(value.numel() * value.element_size(), held)


Number = int | float
_FEW = 64
# Index arithmetic of generated kernels may run in 32 bits whatever the dtype of the tensor.
_WHOLE_LIMIT = 2**31 - 1
_MANTISSA = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


@dataclass(frozen=True)
class NumberSet:
    """A set of numbers: these few, or all integers between two bounds.

    Attributes:
        members: these few, or None for the integers from ``low`` to ``high``. NaN is never one.
        low, high: bounds of the members.
    """

    members: frozenset[Number] | None
    low: Number
    high: Number


NOTHING = NumberSet(frozenset(), 0, 0)  # memory nobody has written: whatever it holds will do


def set_of(*members: Number) -> NumberSet | None:
    """A set of its members; None for NaN, which has many bit patterns, and for too many."""
    if not members or len(set(members)) > _FEW or any(m != m for m in members):
        return None
    return NumberSet(frozenset(members), min(members), max(members))


def between(low: int, high: int) -> NumberSet:
    """The integers from ``low`` to ``high``, both included."""
    few = frozenset(range(low, high + 1)) if high - low < _FEW else None
    return NumberSet(few, low, high)


def union(*sets: NumberSet | None) -> NumberSet | None:
    """What may come from any of the sets; None if that cannot be said."""
    known = [s for s in sets if s is not None]
    if len(known) < len(sets) or not known:
        return None
    if all(s.members is not None for s in known):
        members = {m for s in known for m in s.members or ()}
        if len(members) <= _FEW:
            return set_of(*members) if members else NOTHING
    if not all(map(_all_integers, known)):
        return None
    return between(int(min(s.low for s in known)), int(max(s.high for s in known)))


def apply_binary(
    operation: str, left: NumberSet | None, right: NumberSet | None
) -> NumberSet | None:
    """The exact results of ``add``, ``sub``, ``mul``, ``minimum`` or ``maximum``.

    None where a set is not known, or where a result is NaN.
    """
    if left is None or right is None:
        return None
    if NOTHING in (left, right):
        return NOTHING
    if (
        left.members is not None
        and right.members is not None
        and len(left.members) * len(right.members) <= 4096
    ):
        results = [_exact_result(operation, a, b) for a, b in product(left.members, right.members)]
        if len(set(results)) <= _FEW:
            return set_of(*results)
    if not (_all_integers(left) and _all_integers(right)):
        return None
    corners = [
        _exact_result(operation, a, b)
        for a, b in product((left.low, left.high), (right.low, right.high))
    ]
    return between(int(min(corners)), int(max(corners)))


def apply_division(operation: str, numbers: NumberSet | None, divisor: int) -> NumberSet | None:
    """Results of ``floor_divide`` or ``remainder`` by one integer other than 0."""
    if numbers is None or not _all_integers(numbers):
        return None
    if operation == "remainder":
        return between(min(0, divisor + 1), max(0, divisor - 1))
    ends = int(numbers.low) // divisor, int(numbers.high) // divisor
    return between(min(ends), max(ends))


def magnitude(numbers: NumberSet | None) -> NumberSet | None:
    """Absolute values."""
    if numbers is None or numbers.members is not None:
        return None if numbers is None else set_of(*map(abs, numbers.members or ()))
    return between(0, int(max(abs(numbers.low), abs(numbers.high))))


def fits(numbers: NumberSet | None, dtype: torch.dtype) -> bool:
    """Whether every member is a number of that dtype, so that storing it rounds nothing.

    Denormal numbers do not count: kernels may flush them to zero. Integers have to fit 32 bits
    in any dtype.
    """
    if numbers is None:
        return False
    if dtype in _MANTISSA:
        if numbers.members is None:
            return bool(max(abs(numbers.low), abs(numbers.high)) <= 2 ** _MANTISSA[dtype])
        return all(_is_float(m, dtype) for m in numbers.members)
    if dtype is torch.bool:
        return numbers.members is not None and numbers.members <= {0, 1}
    if dtype.is_complex or not _all_integers(numbers):
        return False
    kind = torch.iinfo(dtype)
    low, high = max(kind.min, -_WHOLE_LIMIT), min(kind.max, _WHOLE_LIMIT)
    return bool(low <= numbers.low and numbers.high <= high)


def cast(
    numbers: NumberSet | None, source: torch.dtype | None, dtype: torch.dtype
) -> NumberSet | None:
    """What numbers of one dtype (None: Python's) are once they are stored in another.

    Raises Inexact if devices, or compiled code, may store them as different bits.
    """
    if source is dtype or fits(numbers, dtype):
        return numbers
    if source is not None and dtype is torch.bool:
        return set_of(0, 1)
    if source is None and numbers is not None and dtype in (torch.float32, torch.float64):
        return _rounded(numbers, dtype)
    whole = source is not None and source not in FLOATS
    if whole and dtype in (torch.float32, torch.float64):  # rounded once, to nearest, everywhere
        return None
    if source is not None and _widens(source, dtype):
        return numbers
    raise Inexact(f"{source or 'a number'} as {dtype} may round or overflow")


def _rounded(numbers: NumberSet, dtype: torch.dtype) -> NumberSet:
    """Python's numbers as everybody rounds them, once and to nearest.

    Raises Inexact if one of them overflows, or becomes denormal.
    """
    stored = [float(torch.tensor(n, dtype=dtype, device="cpu")) for n in numbers.members or ()]
    found = set_of(*stored)
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


def _all_integers(numbers: NumberSet) -> bool:
    if numbers.members is None:
        return True
    return all(math.isfinite(m) and m == int(m) for m in numbers.members)


def _exact_result(operation: str, a: Number, b: Number) -> Number:
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
