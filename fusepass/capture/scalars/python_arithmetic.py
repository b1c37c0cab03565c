"""Compute arithmetic of Python numbers alone on the device, as Python does it.

Floats are computed in float64, integers in int64. What Python's integers do beyond 64 bits, and
what raises (a division by zero), must be excluded by the ranges of the operands.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars.scalar import (
    BOOL,
    DTYPES,
    EXACT,
    MIXED,
    Range,
    ScalarTensor,
    Unfit,
    arithmetic,
    either,
    is_int64,
    kind_of_operand,
    magnitude,
    negated,
    of_integers,
    operand,
    range_of,
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
SIGNS: dict[Any, tuple[Callable[..., Any], Callable[[Range], Range]]] = {
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
MIRRORED: dict[Any, Any] = {
    operator.gt: operator.lt,
    operator.lt: operator.gt,
    operator.ge: operator.le,
    operator.le: operator.ge,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
}
_NEXT = {
    operator.gt: math.floor,
    operator.le: math.floor,
    operator.ge: math.ceil,
    operator.lt: math.ceil,
}
_INT64 = 2**63


def held(node: fx.Node, known: dict[fx.Node, ScalarTensor], recorder: NodeRecorder) -> ScalarTensor:
    """The number that a call makes of numbers, some of them held on the device.

    Raises:
        Unfit: it has no exact form on the device.
    """
    if node.kwargs:
        raise _unsupported(node)
    sides = [operand(value, known) for value in node.args]
    result = _Result(node, sides, recorder)
    made: ScalarTensor | None = None
    if len(sides) == 2:
        compares = node.target in MIRRORED
        made = _comparison(result) if compares else _of_two(result)
    elif len(sides) == 1 and isinstance(sides[0], ScalarTensor):
        made = _of_one(result, sides[0])
    if made is None:
        raise _unsupported(node)
    return made


def _unsupported(node: fx.Node) -> Unfit:
    name = getattr(node.target, "__name__", str(node.target))
    return Unfit(Reason.PYTHON_VALUE, f"Python's {name.strip('_')} is applied to it")


@dataclass
class _Result:
    """The number that a call gives: recorded in front of the call, when a use asks for it."""

    node: fx.Node
    sides: list[Side]
    recorder: NodeRecorder

    def made(
        self, kind: str, found: Range, call: Callable[..., Any], *, work: str | None = None
    ) -> ScalarTensor:
        """The number that a function of torch gives.

        Args:
            kind: of the result.
            found: its range.
            call: of tensors for the operands that are held, and the others as they are.
            work: the kind the operands are converted to; that of the result if not given.
        """

        def compute(first: Any, *rest: Any) -> fx.Node:
            if not isinstance(first, fx.Node):
                first = self.full_like(first, rest[0])
            return self.record(call, first, *rest)

        return self.computed(kind, found, compute, work=work)

    def computed(
        self, kind: str, found: Range, compute: Callable[..., fx.Node], *, work: str | None = None
    ) -> ScalarTensor:
        """The same where ``compute`` records one call or several."""
        held = tuple(side for side in self.sides if isinstance(side, ScalarTensor))
        roots = tuple(dict.fromkeys(root for side in held for root in side.roots))

        def home(device: torch.device) -> fx.Node:
            dtype = DTYPES[work or kind]
            return compute(*[self._tensor(side, device, dtype) for side in self.sides])

        device = next((side for side in held if side.roots), held[0]).device
        return ScalarTensor(
            self.node, kind, found, roots, device, home, self.recorder, operands=held
        )

    def _tensor(self, side: Side, device: torch.device, dtype: torch.dtype) -> Any:
        if isinstance(side, ScalarTensor):
            return side.on(device, dtype)
        if isinstance(side, fx.Node):
            return self.record(torch.full, (), side, dtype=dtype, device=device)
        return float(side) if dtype is torch.float64 else int(side)

    def full_like(self, number: Any, other: fx.Node) -> fx.Node:
        """A number as a 0-d tensor of the dtype and device of another."""
        value = other.meta["example_value"]
        return self.record(torch.full, (), number, dtype=value.dtype, device=value.device)

    def record(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """One more call in front of the node."""
        return self.recorder.before(self.node, target, *args, **kwargs)


def _comparison(result: _Result) -> ScalarTensor:
    compare, kind, pair = _prepared(result.node.target, *result.sides)
    result.sides = list(pair)
    return result.made("bool", BOOL, getattr(torch, compare.__name__), work=kind)


def _prepared(compare: Any, left: Side, right: Side) -> tuple[Any, str, tuple[Side, Side]]:
    """The comparison to make, the kind its operands are converted to, and the operands.

    Raises:
        Unfit: it cannot be made in int64 or float64.
    """
    if not isinstance(left, ScalarTensor):
        compare, left, right = MIRRORED[compare], right, left
    kinds = {kind_of_operand(left), kind_of_operand(right)}
    if "float" not in kinds:
        if isinstance(right, int) and abs(right) >= _INT64:
            raise Unfit(
                Reason.OVERFLOW, f"it is compared with {right}, which has more than 64 bits"
            )
        return compare, "int", (left, right)
    whole = [side for side in (left, right) if kind_of_operand(side) != "float"]
    if all(range_of(side).within(EXACT) for side in whole):
        return compare, "float", (left, right)
    if isinstance(right, float) and not isinstance(right, bool):
        return _with_float(compare, left, right)
    raise Unfit(Reason.OVERFLOW, "an integer beyond 2**53 is compared with a float")


def _with_float(compare: Any, left: Side, right: float) -> tuple[Any, str, tuple[Side, Side]]:
    """An integer against a known float: against the next integer."""
    if math.isfinite(right) and not right.is_integer() and compare in _NEXT:
        right = _NEXT[compare](right)
    if not math.isfinite(right) or not float(right).is_integer() or abs(right) >= _INT64:
        raise Unfit(Reason.OVERFLOW, f"an integer is compared with {right}")
    return compare, "int", (left, int(right))


def _of_two(result: _Result) -> ScalarTensor | None:
    target: Any = result.node.target
    sides = result.sides
    kinds = [kind_of_operand(side) for side in sides]
    ranges = [range_of(side) for side in sides]
    if target in (torch.sym_min, torch.sym_max):
        return _extremum(result, kinds, ranges, target is torch.sym_max)
    if target in (operator.and_, operator.or_, operator.xor) and kinds == ["bool", "bool"]:
        if not all(isinstance(side, ScalarTensor) for side in sides):
            return None
        return result.made("bool", BOOL, getattr(torch, f"logical_{target.__name__.strip('_')}"))
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
        return result.made("int", found, _TORCH[target])
    if target not in (operator.add, operator.sub, operator.mul, operator.truediv):
        return None
    if "float" not in kinds:
        ranges = [_exact_in_double(*each) for each in zip(sides, ranges, strict=True)]
    _as_floats(sides)
    return result.made("float", arithmetic(target, *ranges), _TORCH[target])


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

    def compute(*sides: Any) -> fx.Node:
        held = next(side for side in sides if isinstance(side, fx.Node))
        a, b = (s if isinstance(s, fx.Node) else result.full_like(s, held) for s in sides)
        larger = result.record(torch.gt if largest else torch.lt, b, a)
        return result.record(torch.where, larger, b, a)

    mixed |= any(isinstance(side, ScalarTensor) and side.mixed for side in result.sides)
    return replace(result.computed(kind, found, compute), mixed=mixed)


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
        return result.computed("float", found, lambda a, _: result.record(torch.pow, a, count))
    ends = [ranges[0].least ** count, ranges[0].most ** count]
    found = Range(min(0, *ends), max(ends))
    if not is_int64(found):
        raise Unfit(Reason.OVERFLOW, "integer arithmetic with it may leave 64 bits")
    return result.computed("int", found, lambda a, _: result.record(torch.pow, a, count))


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

    return result.computed("float", Range(0.0, math.inf, found.nan), compute)


def _of_one(result: _Result, side: ScalarTensor) -> ScalarTensor | None:
    node, kind, known = result.node, side.kind, side.range
    target: Any = node.target
    number = "int" if kind == "bool" else kind
    if target in SIGNS:
        call, bounds = SIGNS[target]
        found = bounds(known)
        if number == "int" and not is_int64(found):
            raise Unfit(Reason.OVERFLOW, "integer arithmetic with it may leave 64 bits")
        return replace(result.made(number, found, call), mixed=side.mixed)
    if target in _QUESTIONS:
        return result.made("bool", BOOL, _QUESTIONS[target], work="float")
    if target in _NEGATION:
        return result.made("bool", BOOL, torch.logical_not, work=kind)
    if target is torch.sym_float:
        if kind == "float":
            return replace(side, node=node)
        if known.within(EXACT):
            return replace(side, node=node, kind="float", range=_floating(known))
        return result.computed("float", _floating(known), lambda a: a)
    if target is torch.sym_int and kind != "float":
        return replace(side, node=node, kind="int")
    if getattr(target, "__name__", "") in ("_sym_sqrt", "sqrt"):
        if not known.least >= 0:
            raise Unfit(Reason.PARTIAL_OP, "a square root raises where it is negative")
        return _root(result, known)
    if kind == "float" and target in _WHOLE:
        if not known.within(EXACT):
            raise Unfit(Reason.PARTIAL_OP, "an integer made of NaN or infinity raises")
        found = Range(math.floor(known.least), math.ceil(known.most))
        return result.made("int", found, _WHOLE[target], work="float")
    return None


def _floating(known: Range) -> Range:
    return Range(float(known.least), float(known.most))
