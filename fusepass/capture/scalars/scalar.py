"""Represent a Python number while it is lowered: kind, possible values, 0-d tensors.

Python raises where a tensor wraps or gives infinity (division by zero, a square root of a negative
number, a fill that does not fit its dtype). An operation on a number may become one on a 0-d tensor
only where its range says that this does not happen.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.node_recorder import NodeRecorder, materialized_copy
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import unknown_sizes
from fusepass.torch_private.fx.graph_constants import size_bounds

_INT64 = 2**63
_ELEMENTS = 2**62  # more than any tensor has
_LARGEST = torch.finfo(torch.float64).max
EXACT = 2**53  # integers up to here are doubles


@dataclass(frozen=True)
class Range:
    """Bounds of a number: ``least <= n <= most``, or NaN.

    Attributes:
        least, most: both integers for an integer; may be infinite for a float.
        nan: whether it may be NaN.
        largest: bound of the magnitude of the finite values.
    """

    least: float
    most: float
    nan: bool = False
    largest: float = _LARGEST

    def excludes_zero(self) -> bool:
        """Whether it is never zero; NaN is not."""
        return self.least > 0 or self.most < 0

    def is_finite(self) -> bool:
        """Whether it is never infinite and never NaN."""
        return not self.nan and math.isfinite(self.least) and math.isfinite(self.most)

    def within(self, bound: float) -> bool:
        """Whether it is finite, and of no larger magnitude than ``bound``."""
        return self.is_finite() and -bound <= self.least and self.most <= bound

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether torch accepts every such number where a scalar of this dtype is made of it."""
        if dtype is torch.bool:
            return True
        if dtype.is_floating_point:
            finite = max(abs(self.least), abs(self.most)) if self.is_finite() else self.largest
            return finite <= torch.finfo(dtype).max
        limits = torch.iinfo(dtype)
        return self.is_finite() and limits.min <= self.least and self.most <= limits.max


KNOWN_RANGE = "fusepass_known_range"  # meta key of a tensor that a number is read from: its Range
ANY_FLOAT = Range(-math.inf, math.inf, nan=True)
BOOL = Range(0, 1)


def of_size(size: torch.SymInt | int) -> Range:
    """The range of an integer that the graph computes of sizes, or is given by the program.

    What is not bounded otherwise is taken to be smaller than the elements of any tensor.
    """
    if isinstance(size, int):
        return exactly(size)
    least, most = size_bounds(size)
    return Range(max(least, -_ELEMENTS), min(most, _ELEMENTS))


def exactly(number: float) -> Range:
    """The range of a known number."""
    if math.isnan(number):
        return ANY_FLOAT
    return Range(number, number, largest=abs(number) if math.isfinite(number) else 0.0)


def read_from(source: fx.Node, holds: Callable[[fx.Node], bool]) -> Range:
    """The range of the number that a tensor of one element holds."""
    value = tensor_value(source)
    assert value is not None
    if value.dtype is torch.bool:
        return BOOL
    if KNOWN_RANGE in source.meta:
        return source.meta[KNOWN_RANGE]  # type: ignore[no-any-return]
    if not value.dtype.is_floating_point:
        limits = torch.iinfo(value.dtype)
        counted = _counted(source, _DEPTH, holds)
        return Range(limits.min, limits.max) if counted is None else Range(0, counted)
    least = 0.0 if _not_negative(source, _DEPTH, holds) else -math.inf
    return Range(least, math.inf, nan=True, largest=torch.finfo(value.dtype).max)


def arithmetic(operation: Callable[..., float], a: Range, b: Range) -> Range:
    """The range of ``a + b``, ``a - b``, ``a * b`` or ``a / b`` (zero excluded) in doubles.

    Rounding is monotonic, so the ends of the range are found among the results at the ends.
    """
    ends = []
    for x in (a.least, a.most):
        for y in (b.least, b.most):
            try:
                ends.append(operation(float(x), float(y)))
            except ArithmeticError:
                return ANY_FLOAT
    largest = _largest(operation, a, b)
    if any(map(math.isnan, ends)):
        return replace(_at_infinity(operation, a, b), largest=largest)
    finite = a.is_finite() and b.is_finite()
    return Range(min(ends), max(ends), nan=not finite, largest=largest)


def _largest(operation: Callable[..., float], a: Range, b: Range) -> float:
    """Bound of the magnitude of what finite operands give, if it is finite."""
    if operation is operator.truediv:
        least = min(abs(b.least), abs(b.most))
        found = a.largest / least if least else math.inf
    else:
        found = (operator.mul if operation is operator.mul else operator.add)(a.largest, b.largest)
    return min(found, _LARGEST)


def _at_infinity(operation: Callable[..., float], a: Range, b: Range) -> Range:
    """Products and quotients of numbers that are not negative stay so."""
    positive = a.least >= 0 and b.least >= 0
    if positive and operation in (operator.mul, operator.truediv):
        return Range(0.0, math.inf, nan=True)
    return ANY_FLOAT


def of_integers(operation: Callable[..., int], a: Range, b: Range) -> Range | None:
    """The range of ``+``, ``-``, ``*``, ``//`` or ``%`` of integers; None if it may overflow."""
    if not (is_int64(a) and is_int64(b)):
        return None
    if operation is operator.mod:
        return Range(0, b.most - 1) if b.least > 0 else Range(b.least + 1, 0)
    ends = [operation(x, y) for x in (a.least, a.most) for y in (b.least, b.most)]
    if operation is operator.floordiv:  # nearest to zero, the divisor takes the ends further out
        ends += [operation(x, y) for x in (a.least, a.most) for y in (-1, 1) if _holds(b, y)]
    found = Range(min(ends), max(ends))
    return found if is_int64(found) else None


def is_int64(found: Range) -> bool:
    """Whether integers in a range are 64-bit integers."""
    return found.least >= -_INT64 and found.most < _INT64


def negated(a: Range) -> Range:
    """The range of ``-a``."""
    return Range(-a.most, -a.least, a.nan, a.largest)


def magnitude(a: Range) -> Range:
    """The range of ``abs(a)``."""
    least = 0 if a.least <= 0 <= a.most else min(abs(a.least), abs(a.most))
    return Range(least, max(abs(a.least), abs(a.most)), a.nan, a.largest)


def either(a: Range, b: Range, pick: Callable[..., float]) -> Range:
    """The range of ``min(a, b)`` or ``max(a, b)``: ``a``, if a comparison with NaN decides."""
    least, most = pick(a.least, b.least), pick(a.most, b.most)
    if b.nan:
        least, most = min(least, a.least), max(most, a.most)
    return Range(least, most, a.nan, max(a.largest, b.largest))


def _holds(a: Range, number: int) -> bool:
    return a.least <= number <= a.most


_COUNTING = ("argmax", "argmin", "count_nonzero")
_SAME_ELEMENTS = frozenset("clone contiguous cpu cuda detach getitem reshape squeeze view".split())
# For floats only: the largest negative integer is its own absolute value, squares of integers wrap,
# those of complex numbers may be negative. Not here: rsqrt(-0.0) is minus infinity.
_NEVER_NEGATIVE = frozenset(
    """
    abs exp exp2 linalg_norm linalg_vector_norm norm relu sigmoid softmax sqrt square std var
    vector_norm
    """.split()
)
_STAYS_SO = _SAME_ELEMENTS | frozenset("add amax amin max mean min mul sum".split())
_CASTS = frozenset("bfloat16 double float half to".split())
_DEPTH = 16  # how many operations are looked through


def _counted(node: fx.Node, depth: int, holds: Callable[[fx.Node], bool]) -> int | None:
    """The most an integer tensor can hold that has a number of elements, or a position, in it.

    A symbolic number of elements is assumed to fill less than nine petabytes.
    """
    name, source = op_name(node), node.args[0] if node.args else None
    value = tensor_value(source)
    if not depth or not holds(node) or value is None:
        return None
    truths = value.dtype is torch.bool and "dtype" not in node.kwargs
    if name in _COUNTING or (name == "sum" and truths):
        elements = value.numel()
        return elements if type(elements) is int else EXACT
    same = name in _SAME_ELEMENTS or name in _CASTS
    whole = not value.dtype.is_floating_point and tensor_value(node).dtype is torch.int64  # type: ignore[union-attr]
    return _counted(source, depth - 1, holds) if same and whole else None  # type: ignore[arg-type]


def _not_negative(node: fx.Node, depth: int, holds: Callable[[fx.Node], bool]) -> bool:
    """Whether no element of a tensor is negative (one may be NaN)."""
    value, name = tensor_value(node), op_name(node)
    if value is None or not depth or not holds(node):
        return False
    if value.dtype is torch.bool:
        return True
    if name in _NEVER_NEGATIVE:
        return value.dtype.is_floating_point
    if name == "softplus":  # of a negative scale it is, and below the threshold its argument
        scale, threshold = argument(node, 1, "beta", 1), argument(node, 2, "threshold", 20)
        known = isinstance(scale, (int, float)) and isinstance(threshold, (int, float))
        return known and scale > 0 and threshold >= 0
    if name in ("clamp", "clamp_min"):
        bounds = (argument(node, 1, "min"), argument(node, 2, "max", 0))
        return all(isinstance(bound, (int, float)) and bound >= 0 for bound in bounds)
    if name == "pow":
        exponent = argument(node, 1, "exponent")
        return isinstance(exponent, int) and exponent % 2 == 0 and value.dtype.is_floating_point
    sources = node.all_input_nodes
    held = [tensor_value(source) for source in sources]
    if name not in _STAYS_SO | _CASTS or any(each is None for each in held):
        return False
    if name not in _CASTS and any(each.dtype != value.dtype for each in held):  # type: ignore[union-attr]
        return False
    numbers = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, (int, float))]
    if name in ("add", "mul") and any(number < 0 for number in numbers):
        return False
    floating = value.dtype.is_floating_point  # integers may wrap
    return floating and bool(sources) and all(_not_negative(n, depth - 1, holds) for n in sources)


_KINDS = {
    torch.SymBool: "bool",
    torch.SymInt: "int",
    torch.SymFloat: "float",
    bool: "bool",
    int: "int",
    float: "float",
}

DTYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64}
MIXED = "it may be an integer or a float"
READ_LATE = "fusepass_read_late"  # meta key of a tensor made of a number only to leave the graph


class Unfit(Exception):
    """A use of a number has no tensor form; carries the reason."""

    def __init__(self, code: Reason, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass
class ScalarTensor:
    """A number that is computed on the device.

    Attributes:
        node: the number in the graph.
        kind: ``bool``, ``int`` or ``float``.
        range: what it can be.
        roots: the numbers it is computed from.
        device: where it is, if nothing says otherwise.
        home: records the tensor that holds it on a device, exactly, in a dtype that can; None
            where it is on another device.
        recorder: of the graph.
        mixed: whether it may be an integer although ``kind`` is ``float`` (``max(s, 1)``).
        operands: numbers whose tensors ``home`` asks for.
    """

    node: fx.Node
    kind: str
    range: Range
    roots: tuple[fx.Node, ...]
    device: torch.device
    home: Callable[[torch.device], fx.Node | None]
    recorder: NodeRecorder
    mixed: bool = False
    operands: tuple[ScalarTensor, ...] = ()
    _homes: dict[torch.device, fx.Node | None] = field(default_factory=dict)
    _casts: dict[tuple[torch.device, torch.dtype], fx.Node] = field(default_factory=dict)

    def on(self, device: torch.device, dtype: torch.dtype) -> fx.Node:
        """The number as a 0-d tensor of a device and dtype.

        Raises:
            Unfit: it is on another device.
        """
        grad, self.recorder.grad = self.recorder.grad, False
        try:
            return self._on(device, dtype)
        finally:
            self.recorder.grad = grad

    def dtype_on(self, device: torch.device) -> torch.dtype:
        """The exact dtype of the tensor on that device; :meth:`on` was called before."""
        return tensor_value(self._homes[device]).dtype  # type: ignore[union-attr]

    def out(self) -> fx.Node:
        """The number as a tensor of its own that can leave the graph, to be read with ``item``.

        Raises:
            Unfit: it may be an integer or a float.
        """
        if self.mixed:
            raise Unfit(Reason.PYTHON_VALUE, MIXED)
        tensor = self.on(self.device, DTYPES[self.kind])
        return materialized_copy(tensor, self.recorder.after)

    def _on(self, device: torch.device, dtype: torch.dtype) -> fx.Node:
        for number in self._without_home(device):
            number._homes[device] = number.home(device)
        home = self._homes[device]
        if home is None:
            raise Unfit(Reason.PYTHON_VALUE, f"it is used on another device, {device}")
        if tensor_value(home).dtype == dtype:  # type: ignore[union-attr]
            return home
        if (device, dtype) not in self._casts:
            self._casts[device, dtype] = self.recorder.after(home, "to", home, dtype)
        return self._casts[device, dtype]

    def _without_home(self, device: torch.device) -> list[ScalarTensor]:
        """The numbers that this one is made of, each behind its operands: a sum may be long."""
        found: dict[int, ScalarTensor] = {}
        todo = [self]
        while todo:
            number = todo[-1]
            missing = [
                one for one in number.operands if device not in one._homes and id(one) not in found
            ]
            if missing:
                todo += missing
            elif device not in todo.pop()._homes:
                found[id(number)] = number
        return list(found.values())


def kind_of(value: Any) -> str | None:
    """``bool``, ``int`` or ``float`` for a number, or the node of one; None for anything else."""
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value")
    return _KINDS.get(type(value))


def operand(value: Any, held: dict[fx.Node, ScalarTensor]) -> ScalarTensor | fx.Node | float:
    """An operand of arithmetic: a number that is held, a size of the graph, or a known number.

    Raises:
        Unfit: it is something else.
    """
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, fx.Node):
        if value in held:
            return held[value]
        number = value.meta.get("example_value")
        if isinstance(number, (torch.SymInt, int)) and not unknown_sizes(number):
            return value
    raise Unfit(Reason.PYTHON_VALUE, "it is combined with a value that only Python has")


def range_of(side: ScalarTensor | fx.Node | float) -> Range:
    """The range of an operand."""
    if isinstance(side, ScalarTensor):
        return side.range
    return of_size(side.meta["example_value"]) if isinstance(side, fx.Node) else exactly(side)


def kind_of_operand(side: ScalarTensor | fx.Node | float) -> str:
    """``bool``, ``int`` or ``float``."""
    return side.kind if isinstance(side, ScalarTensor) else kind_of(side) or "int"
