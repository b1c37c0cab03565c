"""Check what a match binds to each variable against the pattern's example.

Sizes that are one size in the pattern must be one size in the graph, dtypes that are one dtype one
dtype, and every tensor as many dimensions as in the example. Otherwise a bias that is broadcast
along another dimension would pass for the bias of the rule, and no check of the result's shape
would see it. A computation that treats each row alone may have several leading dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.rewrite.match.matcher import BoundTerm, MatchState, number, same_size
from fusepass.rewrite.match.pattern import FLOATS, Operation, Pattern, Size
from fusepass.rewrite.rule import Reject
from fusepass.torch_private.fx.graphs import known_equal, known_true
from fusepass.torch_private.fx.tensor_kinds import is_plain_fake
from fusepass.torch_private.fx.tracing import evaluated_size


@dataclass(frozen=True)
class BoundOperand:
    """A tensor the replacement is given.

    Attributes:
        node: where it is in the graph.
        dims: permutation to apply first, or None.
        merged: whether leading dimensions are merged into one after that.
    """

    node: fx.Node
    dims: tuple[int, ...] | None = None
    merged: bool = False

    def shaped(self, base: torch.Tensor) -> torch.Tensor:
        """The tensor as the pattern sees it, from the one in the graph (a view of it)."""
        value = base if self.dims is None else base.permute(self.dims)
        return value.view(-1, value.shape[-1]) if self.merged else value


@dataclass(frozen=True)
class Binding:
    """Operands by parameter name, and bound scalars by parameter name."""

    operands: Mapping[str, BoundOperand]
    scalars: Mapping[str, Any] = field(default_factory=dict)


class _Mismatch(Exception):
    def __init__(self, code: Reason, text: str, node: fx.Node) -> None:
        super().__init__(text)
        self.reject = Reject(code, text, node)


def bind(pattern: Pattern, state: MatchState) -> Binding | Reject:
    """Check and name what a match binds."""
    try:
        operands = {v.name: _operand(state.variables[v.name]) for v in pattern.variables}
        _check_dtypes(pattern, operands)
        sizes, leading = _sizes(pattern, operands)
        merged = {
            v.name
            for v in pattern.variables
            if v.shape and v.shape[0] in leading and len(set(map(_key, leading[v.shape[0]]))) > 1
        }
        _check_choices(pattern, sizes, state)
        _check_size_arguments(pattern, state, sizes)
    except _Mismatch as mismatch:
        return mismatch.reject
    final = {
        name: BoundOperand(operand.node, operand.dims, name in merged)
        for name, operand in operands.items()
    }
    return Binding(final, {name: number(value) for name, value in state.scalars.items()})


def _operand(bound: BoundTerm) -> BoundOperand:
    term, dims = bound.term, bound.dims
    if term.node is None:  # the transposed weight inside a linear layer
        given = dict(term.args)
        inner, turned = given["self"], given["dims"]
        dims = turned if dims is None else tuple(turned[d] for d in dims)
        term = inner
    if dims is not None and dims == tuple(range(len(dims))):
        dims = None
    if term.node is None:
        raise _Mismatch(Reason.OTHER_OP, "an operand is inside another operation", term.owner)
    return BoundOperand(term.node, dims)


def _value(operand: BoundOperand) -> torch.Tensor:
    value = tensor_value(operand.node)
    if value is None:
        raise _Mismatch(Reason.OTHER_OP, "an operand is no tensor", operand.node)
    return value


def _shape(operand: BoundOperand) -> tuple[Any, ...]:
    shape = tuple(_value(operand).shape)
    return shape if operand.dims is None else tuple(shape[d] for d in operand.dims)


def _check_dtypes(pattern: Pattern, operands: dict[str, BoundOperand]) -> None:
    common: dict[torch.dtype, torch.dtype] = {}
    device = None
    for variable in pattern.variables:
        operand = operands[variable.name]
        value = _value(operand)
        wanted = variable.dtype
        if pattern.dtype is None and wanted in FLOATS and value.dtype in FLOATS:
            wanted = common.setdefault(wanted, value.dtype)
        if value.dtype != wanted:
            text = f"{variable.name} is {value.dtype}, the rule wants {wanted}"
            raise _Mismatch(Reason.DTYPE_MISMATCH, text, operand.node)
        if value.layout is not torch.strided or not is_plain_fake(value):
            text = f"{variable.name} is no plain dense tensor ({type(value).__name__})"
            raise _Mismatch(Reason.OTHER_OP, text, operand.node)
        if device is not None and value.device != device:
            text = f"{variable.name} is on {value.device}, others are on {device}"
            raise _Mismatch(Reason.DEVICE_MISMATCH, text, operand.node)
        device = value.device


Leading = dict[Any, list[tuple[Any, ...]]]


def _sizes(pattern: Pattern, operands: dict[str, BoundOperand]) -> tuple[dict[Any, Any], Leading]:
    """Symbol to size, and first symbol to the leading dimensions that stand for it."""
    sizes: dict[Any, Any] = {}
    places: dict[Any, str] = {}  # where each was read
    leading: Leading = {}
    for variable in pattern.variables:
        operand = operands[variable.name]
        shape, wanted = _shape(operand), variable.shape
        extra = len(shape) - len(wanted)
        groups = pattern.rowwise and len(wanted) >= 2 and not isinstance(wanted[0], int)
        if extra < 0 or (extra > 0 and not groups):
            text = f"{variable.name} has {len(shape)} dimensions, the rule's has {len(wanted)}"
            raise _Mismatch(Reason.SHAPE_MISMATCH, text, operand.node)
        rest = list(enumerate(zip(wanted, shape[extra:], strict=True)))
        if groups:
            leading.setdefault(wanted[0], []).append(shape[: extra + 1])
            rest = rest[1:]
        for dim, (symbol, size) in rest:
            _bind_size(sizes, places, symbol, size, f"{variable.name}.shape[{dim}]", operand)
    for symbol, found in leading.items():
        _bind_leading(pattern, operands, sizes, places, symbol, found)
    merged = {symbol: _numel(found[0]) for symbol, found in leading.items()}
    _check_computed(pattern, operands, merged | sizes)
    return sizes, leading


def _check_computed(
    pattern: Pattern, operands: dict[str, BoundOperand], sizes: dict[Any, Any]
) -> None:
    """Sizes that are expressions of others, as in front of a sum with ``torch.cat((x, x))``.

    The operation itself does not tell: a size of 1 would be broadcast.
    """
    for variable in pattern.variables:
        operand = operands[variable.name]
        shape, wanted = _shape(operand), variable.shape
        extra = len(shape) - len(wanted)
        for dim, symbol in enumerate(wanted):
            if isinstance(symbol, int) or getattr(symbol, "is_symbol", False):
                continue
            size = shape[dim + extra] if dim else _numel(shape[: extra + 1])
            try:
                value = evaluated_size(symbol, sizes)
            except KeyError:  # of a size that no variable has by itself
                value = None
            if value is None or not known_equal(value, size):
                text = f"{variable.name}.shape[{dim}] is {size}, the rule wants {value}"
                raise _Mismatch(Reason.SHAPE_MISMATCH, text, operand.node)


def _bind_leading(
    pattern: Pattern,
    operands: dict[str, BoundOperand],
    sizes: dict[Any, Any],
    places: dict[Any, str],
    symbol: Any,
    found: list[tuple[Any, ...]],
) -> None:
    totals = [_numel(group) for group in found]
    names = [v for v in pattern.variables if v.shape and v.shape[0] == symbol]
    for variable, total in zip(names, totals, strict=False):
        if not known_equal(total, totals[0]):
            text = f"{variable.name} has other leading sizes than {names[0].name}"
            raise _Mismatch(Reason.SHAPE_MISMATCH, text, operands[variable.name].node)
    if all(len(group) == 1 for group in found) or symbol in sizes:
        place = f"{names[0].name}.shape[0]"
        _bind_size(sizes, places, symbol, totals[0], place, operands[names[0].name])


def _numel(group: tuple[Any, ...]) -> Any:
    total: Any = 1
    for size in group:
        total = total * size
    return total


def _key(group: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(map(str, group))


def _bind_size(
    sizes: dict[Any, Any],
    places: dict[Any, str],
    symbol: Any,
    size: Any,
    place: str,
    operand: BoundOperand,
) -> None:
    if isinstance(symbol, int):
        wanted: Any = symbol
    elif getattr(symbol, "is_symbol", False):
        wanted = sizes.setdefault(symbol, size)
    else:  # an expression of other sizes, which may come later: _check_computed compares it
        return
    other = places.setdefault(symbol, place)
    if known_equal(wanted, size):
        return
    text = f"{place} is {size}, the rule wants {wanted}"
    if not isinstance(symbol, int):
        text = f"{place} is {size} and {other} is {wanted}, where the rule has one size"
    raise _Mismatch(Reason.SHAPE_MISMATCH, text, operand.node)


def _check_choices(pattern: Pattern, sizes: dict[Any, Any], state: MatchState) -> None:
    """What the pattern chose by: with other sizes it might have been another computation."""
    for condition in pattern.chosen_by:
        try:
            holds = known_true(evaluated_size(condition, sizes))
        except KeyError:  # a size that stands for several here
            holds = False
        if not holds:
            named = {symbol: _size_expression(pattern, symbol) for symbol in condition.free_symbols}
            text = f"the rule's pattern chose by {condition.subs(named)}, which does not hold here"
            raise _Mismatch(Reason.SHAPE_MISMATCH, text, state.nodes[0])


def _size_expression(pattern: Pattern, symbol: Any) -> sympy.Symbol:
    """How a size would be read from the first tensor that has it."""
    for variable in pattern.variables:
        if symbol in variable.shape:
            return sympy.Symbol(f"{variable.name}.shape[{variable.shape.index(symbol)}]")
    return sympy.Symbol(str(symbol))


def _check_size_arguments(pattern: Pattern, state: MatchState, sizes: dict[Any, Any]) -> None:
    """Arguments the pattern computes from sizes (``x.view(n, -1)``)."""
    seen: set[int] = set()

    def compare(wanted: Any, found: Any, node: fx.Node) -> None:
        if isinstance(wanted, Size):
            try:
                value = evaluated_size(wanted.expression, sizes)
            except KeyError:
                value = None
            if value is None or not same_size(value, number(found)):
                text = f"a size given to {node.name} is {number(found)}, the rule wants {value}"
                raise _Mismatch(Reason.SHAPE_MISMATCH, text, node)
        elif isinstance(wanted, tuple) and isinstance(found, tuple):
            for a, b in zip(wanted, found, strict=True):
                compare(a, b, node)

    def walk(operation: Operation) -> None:
        term = state.parts.get(id(operation))  # None: a transposition the graph has not
        if id(operation) in seen or term is None:
            return
        seen.add(id(operation))
        theirs = dict(term.args)
        for name, wanted in operation.args:
            parts = wanted if isinstance(wanted, tuple) else (wanted,)
            for part in parts:
                if isinstance(part, Operation):
                    walk(part)
            if not isinstance(wanted, Operation):
                compare(wanted, theirs.get(name), term.owner)

    for root in pattern.roots:
        walk(root)
