"""Compute arithmetic of Python numbers alone on the device, as Python does it.

Floats are computed in float64, integers in int64. What Python's integers do beyond 64 bits, and
what raises (a division by zero), must be excluded by the ranges of the operands.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars import number_comparison
from fusepass.capture.scalars.scalar import (
    DTYPES,
    MIXED,
    ScalarTensor,
    Unfit,
    kind_of_operand,
    operand,
    range_of,
)
from fusepass.capture.scalars.value_range import (
    BOOL,
    EXACT,
    Range,
    arithmetic,
    either,
    is_int64,
    magnitude,
    negated,
    of_integers,
)
from fusepass.graph.dataflow.node_recorder import NodeRecorder
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graph_constants import bounds_up_to

Side = ScalarTensor | fx.Node | float
_TORCH: dict[Any, Callable[..., Any]] = {
    operator.add: torch.add,
    operator.sub: torch.sub,
    operator.mul: torch.mul,
    operator.truediv: torch.div,
    operator.floordiv: torch.floor_divide,
    operator.mod: torch.remainder,
}
_SIGNS: dict[Any, tuple[Callable[..., Any], Callable[[Range], Range]]] = {
    operator.neg: (torch.neg, negated),
    "__neg__": (torch.neg, negated),
    operator.pos: (torch.positive, lambda same: same),
    "__pos__": (torch.positive, lambda same: same),
    operator.abs: (torch.abs, magnitude),
    abs: (torch.abs, magnitude),
    "__abs__": (torch.abs, magnitude),
}
_WHOLE: dict[Any, Callable[..., Any]] = {
    torch.sym_int: torch.trunc,
    math.floor: torch.floor,
    math.ceil: torch.ceil,
    math.trunc: torch.trunc,
    "__round__": torch.round,
    "__floor__": torch.floor,
    "__ceil__": torch.ceil,
    "__trunc__": torch.trunc,
}
_QUESTIONS: dict[Any, Callable[..., Any]] = {
    math.isnan: torch.isnan,
    math.isinf: torch.isinf,
    math.isfinite: torch.isfinite,
}
_NEGATION = (operator.not_, torch.sym_not)


def held(node: fx.Node, known: dict[fx.Node, ScalarTensor], recorder: NodeRecorder) -> ScalarTensor:
    """The number that a call makes of numbers, some of them held on the device.

    Args:
        node: the call.
        known: numbers that are held.
        recorder: of the graph.

    Raises:
        Unfit: it has no exact form on the device.
    """
    target = node.target
    if node.kwargs:
        raise _unsupported(node)
    sides = [operand(value, known) for value in node.args]
    made: ScalarTensor | None = None
    if len(sides) == 2 and target in number_comparison.MIRRORED:
        made = _comparison(node, sides, recorder)
    elif len(sides) == 2:
        made = _of_two(node, sides, recorder)
    elif len(sides) == 1 and isinstance(sides[0], ScalarTensor):
        made = _of_one(node, sides[0], recorder)
    if made is None:
        raise _unsupported(node)
    return made


def _unsupported(node: fx.Node) -> Unfit:
    name = getattr(node.target, "__name__", str(node.target))
    return Unfit(Reason.PYTHON_VALUE, f"Python's {name.strip('_')} is applied to it")


class _Result:
    """What a call gives: recorded in front of it, when a use asks for it."""

    def __init__(self, node: fx.Node, sides: list[Side], recorder: NodeRecorder) -> None:
        self.node = node
        self.sides = sides
        self.recorder = recorder

    def made(
        self, kind: str, found: Range, compute: Callable[..., fx.Node], *, work: str | None = None
    ) -> ScalarTensor:
        """The number.

        Args:
            kind: of the result.
            found: its range.
            compute: records it, given tensors for the held operands and the others as they are.
            work: the kind the operands are converted to; that of the result if not given.
        """
        held = [side for side in self.sides if isinstance(side, ScalarTensor)]
        roots = tuple(dict.fromkeys(root for side in held for root in side.roots))

        def home(device: torch.device) -> fx.Node:
            dtype = DTYPES[work or kind]
            return compute(*[self._tensor(side, device, dtype) for side in self.sides])

        device = held[0].device
        return ScalarTensor(
            self.node, kind, found, roots, device, home, self.recorder, operands=tuple(held)
        )

    def _tensor(self, side: Side, device: torch.device, dtype: torch.dtype) -> Any:
        if isinstance(side, ScalarTensor):
            return side.on(device, dtype)
        if isinstance(side, fx.Node):
            return self.record(torch.full, (), side, dtype=dtype, device=device)
        return float(side) if dtype is torch.float64 else int(side)

    def record(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """One more call in front of the node."""
        return self.recorder.before(self.node, target, *args, **kwargs)


def _comparison(node: fx.Node, sides: list[Side], recorder: NodeRecorder) -> ScalarTensor:
    result = _Result(node, sides, recorder)
    compare, kind, pair = number_comparison.prepared(node.target, *sides)
    result.sides = list(pair)
    torch_compare = getattr(torch, compare.__name__)

    def compute(left: Any, right: Any) -> fx.Node:
        if not isinstance(left, fx.Node):
            left = result.record(
                torch.full, (), left, dtype=DTYPES[kind], device=right.meta["example_value"].device
            )
        return result.record(torch_compare, left, right)

    return result.made("bool", BOOL, compute, work=kind)


def _of_two(node: fx.Node, sides: list[Side], recorder: NodeRecorder) -> ScalarTensor | None:
    target: Any = node.target
    kinds = [kind_of_operand(side) for side in sides]
    ranges = [range_of(side) for side in sides]
    result = _Result(node, sides, recorder)
    if target in (torch.sym_min, torch.sym_max):
        return _extremum(result, kinds, ranges, target is torch.sym_max)
    if target in (operator.and_, operator.or_, operator.xor) and kinds == ["bool", "bool"]:
        logical = {"and_": "logical_and", "or_": "logical_or", "xor": "logical_xor"}
        return _bitwise(result, getattr(torch, logical[target.__name__]))
    if target is operator.pow:
        return _power(result, kinds, ranges)
    if target not in _TORCH:
        return None
    _no_mixed(sides)
    divides = target in (operator.truediv, operator.floordiv, operator.mod)
    if divides and not ranges[1].excludes_zero():
        raise Unfit(Reason.PARTIAL_OP, "a division by zero would raise, and it may be zero")
    floating = "float" in kinds or target is operator.truediv
    if not floating:
        found = of_integers(target, *ranges)
        if found is None:
            raise Unfit(Reason.OVERFLOW, "integer arithmetic with it may leave 64 bits")
        return result.made("int", found, _ordered(result, _TORCH[target]))
    if target not in (operator.add, operator.sub, operator.mul, operator.truediv):
        return None
    if "float" not in kinds:
        ranges = [_exact_in_double(*each) for each in zip(sides, ranges, strict=True)]
    _as_floats(sides)
    found = arithmetic(target, *ranges)
    return result.made("float", found, _ordered(result, _TORCH[target]))


def _exact_in_double(side: Side, found: Range) -> Range:
    """The range of an operand of a quotient, a size being guarded to be no larger than it may be.

    Raises:
        Unfit: it may be larger.
    """
    size = side.meta["example_value"] if isinstance(side, fx.Node) else None
    if isinstance(size, torch.SymInt) and not found.within(EXACT):
        guarded = bounds_up_to(size, EXACT)
        if guarded is not None:
            return Range(max(found.least, guarded[0]), min(found.most, guarded[1]))
    if not found.within(EXACT):
        raise Unfit(Reason.OVERFLOW, "a quotient of integers beyond 2**53 is rounded otherwise")
    return found


def _ordered(result: _Result, call: Callable[..., Any]) -> Callable[..., fx.Node]:
    """A call on two operands of which the first may be a known number."""

    def compute(left: Any, right: Any) -> fx.Node:
        if not isinstance(left, fx.Node):
            value = right.meta["example_value"]
            left = result.record(torch.full, (), left, dtype=value.dtype, device=value.device)
        return result.record(call, left, right)

    return compute


def _bitwise(result: _Result, call: Callable[..., Any]) -> ScalarTensor | None:
    if not all(isinstance(side, ScalarTensor) for side in result.sides):
        return None
    return result.made("bool", BOOL, lambda a, b: result.record(call, a, b))


def _no_mixed(sides: list[Side]) -> None:
    """An integer or a float, whichever is larger: only beside a float it does not matter."""
    mixed = [isinstance(side, ScalarTensor) and side.mixed for side in sides]
    if any(mixed) and not any(
        kind_of_operand(side) == "float" and not m for side, m in zip(sides, mixed, strict=True)
    ):
        raise Unfit(Reason.PYTHON_VALUE, MIXED)


def _as_floats(sides: list[Side]) -> None:
    for side in sides:
        try:
            float(side)  # type: ignore[arg-type]
        except TypeError:
            continue
        except OverflowError:
            raise Unfit(Reason.OVERFLOW, "an integer it is combined with is no float") from None


def _extremum(
    result: _Result, kinds: list[str], ranges: list[Range], largest: bool
) -> ScalarTensor | None:
    """``max(a, b)`` is ``b`` if that is larger, else ``a``, NaN or not."""
    found = either(ranges[0], ranges[1], max if largest else min)
    kind = "float" if "float" in kinds else "int"
    mixed = kinds[0] != kinds[1]
    if "bool" in kinds:
        return None
    whole = [each for kind, each in zip(kinds, ranges, strict=True) if kind == "int"]
    if mixed and not all(each.within(EXACT) for each in whole):
        return None

    def compute(a: Any, b: Any) -> fx.Node:
        held = a if isinstance(a, fx.Node) else b
        value = held.meta["example_value"]
        sides = [
            side
            if isinstance(side, fx.Node)
            else result.record(torch.full, (), side, dtype=value.dtype, device=value.device)
            for side in (a, b)
        ]
        a, b = sides
        larger = result.record(torch.gt if largest else torch.lt, b, a)
        return result.record(torch.where, larger, b, a)

    mixed |= any(isinstance(side, ScalarTensor) and side.mixed for side in result.sides)
    return replace(result.made(kind, found, compute), mixed=mixed)


def _power(result: _Result, kinds: list[str], ranges: list[Range]) -> ScalarTensor | None:
    base, exponent = result.sides
    if not isinstance(base, ScalarTensor) or not isinstance(exponent, (int, float)) or base.mixed:
        return None
    if kinds[0] == "float" and exponent == 0.5 and ranges[0].least >= 0:
        return _root(result, ranges[0])
    if not float(exponent).is_integer() or not 1 <= exponent <= 16:
        return None
    count = int(exponent)
    if "float" in kinds:
        if count > 1 and ranges[0].largest > 2.0 ** (1020 // count):
            raise Unfit(Reason.OVERFLOW, "a power of it may overflow, which raises")
        least, most = (_power_of(end, count) for end in (ranges[0].least, ranges[0].most))
        found = Range(least, most, ranges[0].nan)
        if count % 2 == 0:
            found = Range(0.0, math.inf, ranges[0].nan)
        return result.made("float", found, lambda a, _: result.record(torch.pow, a, count))
    ends = [ranges[0].least ** count, ranges[0].most ** count]
    found = Range(min(0, *ends), max(ends))
    if not is_int64(found):
        raise Unfit(Reason.OVERFLOW, "integer arithmetic with it may leave 64 bits")
    return result.made("int", found, lambda a, _: result.record(torch.pow, a, count))


def _power_of(number: float, count: int) -> float:
    try:
        return float(number) ** count
    except OverflowError:
        return math.copysign(math.inf, number) if count % 2 else math.inf


def _root(result: _Result, found: Range) -> ScalarTensor:
    """The square root: of minus zero, ``**`` gives zero and ``math.sqrt`` minus zero."""
    power = result.node.target is operator.pow

    def compute(a: Any, *_: Any) -> fx.Node:
        root = result.record(torch.sqrt, a)
        return result.record(torch.abs, root) if power else root

    return result.made("float", Range(0.0, math.inf, found.nan), compute)


def _of_one(node: fx.Node, side: ScalarTensor, recorder: NodeRecorder) -> ScalarTensor | None:
    target, kind, known = node.target, side.kind, side.range
    result = _Result(node, [side], recorder)
    number = "int" if kind == "bool" else kind
    if target in _SIGNS:
        call, bounds = _SIGNS[target]
        found = bounds(known)
        if number == "int" and not is_int64(found):
            raise Unfit(Reason.OVERFLOW, "integer arithmetic with it may leave 64 bits")
        made = result.made(number, found, lambda a: result.record(call, a))
        return replace(made, mixed=side.mixed)
    if target in _QUESTIONS:
        call = _QUESTIONS[target]
        return result.made("bool", BOOL, lambda a: result.record(call, a), work="float")
    if target in _NEGATION:
        return result.made("bool", BOOL, lambda a: result.record(torch.logical_not, a), work=kind)
    if target is torch.sym_float:
        if kind == "float":
            return replace(side, node=node)
        if known.within(EXACT):
            return replace(side, node=node, kind="float", range=_floating(known))
        rounded = _Result(node, [side], recorder)
        return rounded.made("float", _floating(known), lambda a: a)
    if target is torch.sym_int and kind != "float":
        return replace(side, node=node, kind="int")
    if getattr(target, "__name__", "") in ("_sym_sqrt", "sqrt"):
        if not known.least >= 0:
            raise Unfit(Reason.PARTIAL_OP, "a square root raises where it is negative")
        return _root(result, known)
    if kind == "float" and target in _WHOLE:
        if not known.within(EXACT):
            raise Unfit(Reason.PARTIAL_OP, "an integer made of NaN or infinity raises")
        call = _WHOLE[target]
        found = Range(math.floor(known.least), math.ceil(known.most))
        return result.made("int", found, lambda a: result.record(call, a), work="float")
    return None


def _floating(known: Range) -> Range:
    return Range(float(known.least), float(known.most))
