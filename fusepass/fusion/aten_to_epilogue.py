"""ATen's pointwise calls, written with the operations of an epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.fusion.kernel_ir.epilogue import OPERATIONS
from fusepass.fusion.kernel_ir.epilogue import is_constant as is_number
from fusepass.graph.ops.op_names import argument, op_name, tensor_value

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
CASTS = frozenset("convert_element_type _to_copy".split())
VIEWS = frozenset("view reshape _unsafe_view".split())


class NoRegion(Exception):
    """Why there is no region at a GEMM, or why a call has no place in it."""


def is_cast(node: Any) -> bool:
    """Whether a node changes nothing but the dtype."""
    return isinstance(node, fx.Node) and op_name(node) in CASTS and not set(node.kwargs) - {"dtype"}


def widened(node: Any) -> fx.Node | None:
    """What a node is a copy of, in a floating dtype that holds all its numbers; else None."""
    source: Any = node.args[0] if is_cast(node) else None
    before, now = tensor_value(source), tensor_value(node)
    if before is None or now is None:
        return None
    if not before.dtype.is_floating_point or not now.dtype.is_floating_point:
        return None
    return source if torch.promote_types(before.dtype, now.dtype) is now.dtype else None


Emit = Callable[..., Any]
"""Called with an operation and its arguments (nodes, numbers, what it gave before)."""
_SAME = frozenset(OPERATIONS) - {"add", "sub", "div", "where", "sigmoid", "relu"}
_OF_TRUTHS = frozenset("eq ne logical_not logical_and logical_or where".split())
_TRUTHS = _OF_TRUTHS | frozenset("lt le gt ge".split())


def calls_of(node: fx.Node) -> Callable[[Emit, fx.Node], Any] | None:
    """How a call is written with an epilogue's operations; None if it cannot be."""
    name, value = op_name(node), tensor_value(node)
    if name is None or value is None or value.dtype not in (*FLOATS, torch.bool):
        return None
    if _is_truth_arithmetic(node, name, value.dtype):
        return None
    if name in CASTS:
        return _cast if value.dtype in FLOATS and not set(node.kwargs) - {"dtype"} else None
    if node.kwargs and set(node.kwargs) - {"alpha", "min", "max", "value"}:
        return None
    if name in _SPECIAL:
        return _SPECIAL[name]
    return _same if name in _SAME and not node.kwargs else None


def _is_truth_arithmetic(node: fx.Node, name: str, dtype: torch.dtype) -> bool:
    """Whether a call computes with truth values: in a kernel ``True + True`` would not be True."""
    if dtype is torch.bool and name not in _TRUTHS:
        return True
    given = [value.dtype for value in map(tensor_value, node.all_input_nodes) if value is not None]
    return name not in _OF_TRUTHS and all(one is torch.bool for one in given)


def _same(emit: Emit, node: fx.Node) -> Any:
    return emit(op_name(node), *_numbers(node.args))


def _numbers(args: Any) -> list[Any]:
    if not all(isinstance(arg, (fx.Node, tuple)) or is_number(arg) for arg in args):
        raise NoRegion("an argument is neither a tensor nor a number")
    return list(args)


def _cast(emit: Emit, node: fx.Node) -> Any:
    source: Any = node.args[0]
    value = tensor_value(source)
    if value is None or value.dtype not in FLOATS:
        raise NoRegion("a cast of what is not floating")
    return source  # computed in fp32, rounded where it is stored


def _sum(emit: Emit, node: fx.Node) -> Any:
    first, second = _numbers(node.args[:2])
    alpha = argument(node, 2, "alpha", 1)
    if not is_number(alpha):
        raise NoRegion("a scale that varies")
    if alpha != 1:
        second = emit("mul", second, alpha)
    return emit("add" if op_name(node) == "add" else "sub", first, second)


def _quotient(emit: Emit, node: fx.Node) -> Any:
    return emit("div", *_numbers(node.args[:2]))


def _sum_of_two(emit: Emit, node: fx.Node) -> Any:
    """``addcmul``, ``addcdiv``; the scale comes first, as in eager."""
    first, left, right = _numbers(node.args[:3])
    scale = argument(node, 3, "value", 1)
    if not is_number(scale):
        raise NoRegion("a scale that varies")
    if scale != 1:
        left = emit("mul", left, scale)
    return emit("add", first, emit("mul" if op_name(node) == "addcmul" else "div", left, right))


def _fma(emit: Emit, node: fx.Node) -> Any:
    """``prims::fma``, in which torch 2.15 writes ``addcmul``; the compiler contracts it again."""
    left, right, last = _numbers(node.args[:3])
    return emit("add", emit("mul", left, right), last)


def _relu(emit: Emit, node: fx.Node) -> Any:
    return emit("relu", node.args[0])


def _sigmoid(emit: Emit, node: fx.Node) -> Any:
    return emit("sigmoid", node.args[0])


def _where(emit: Emit, node: fx.Node) -> Any:
    return emit("where", *_numbers(node.args[:3]))


def _power(emit: Emit, node: fx.Node) -> Any:
    base, exponent = node.args[:2]
    if not isinstance(base, fx.Node) or exponent not in (2, 3, 4, 0.5, -1, -0.5):
        raise NoRegion("a power with no short form")
    if exponent == 0.5:
        return emit("sqrt", base)
    if exponent == -0.5:
        return emit("rsqrt", base)
    if exponent == -1:
        return emit("reciprocal", base)
    square = emit("mul", base, base)
    return square if exponent == 2 else emit("mul", square, base if exponent == 3 else square)


def _clamp(emit: Emit, node: fx.Node) -> Any:
    name, value = op_name(node), node.args[0]
    low = argument(node, 1, "min") if name in ("clamp", "clamp_min", "hardtanh") else None
    high = argument(node, 2, "max") if name in ("clamp", "hardtanh") else None
    high = argument(node, 1, "max") if name == "clamp_max" else high
    if low is None and high is None:
        raise NoRegion("a clamp without bounds")
    if low is not None:
        value = emit("maximum", *_numbers([value, low]))
    if high is not None:
        value = emit("minimum", *_numbers([value, high]))
    return value


_SPECIAL: dict[str, Callable[[Emit, fx.Node], Any]] = {
    "add": _sum,
    "addcdiv": _sum_of_two,
    "addcmul": _sum_of_two,
    "sub": _sum,
    "div": _quotient,
    "fma": _fma,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "where": _where,
    "pow": _power,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
}
