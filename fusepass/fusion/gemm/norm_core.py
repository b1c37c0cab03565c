"""Rows divided by their root mean square or by their standard deviation, found in an ATen graph.

    x * rsqrt(mean(x²) + eps)                          of RMSNorm
    (x - mean(x)) * rsqrt(mean((x - mean(x))²) + eps)  of LayerNorm

in single precision, of a half type; means are over the last dimension. ``var`` and ``var_mean`` are
spellings of the latter, ``… / sqrt(…)`` of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.fusion.aten_to_epilogue import is_cast
from fusepass.fusion.kernel_ir.epilogue import is_constant
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal


@dataclass(frozen=True)
class ScaledRows:
    """Rows of unit size.

    Attributes:
        source: what they are made of.
        eps: added under the root; positive and finite.
        centred: whether the mean is subtracted.
        calls: all in between, the cast of the source first.
    """

    source: fx.Node
    eps: float
    centred: bool
    calls: tuple[fx.Node, ...]


def scaled_rows(scaled: fx.Node, like: torch.Tensor) -> ScaledRows | None:
    """What rows are made of, if they are of unit size and their source is like another tensor.

    Args:
        scaled: the rows, in single precision.
        like: of the dtype and the sizes that the source has to have; contiguous it has to be, too.
    """
    value = tensor_value(scaled)
    if value is None or value.dtype is not torch.float32:
        return None
    for rows, under, roots in _divided_by_root(scaled):
        if op_name(under) != "add" or argument(under, 2, "alpha", 1) != 1:
            continue
        squares: Any = under.args[0]
        eps: Any = under.args[1]
        if not is_constant(eps) or not 0 < eps < math.inf:
            continue
        centred = op_name(rows) == "sub"
        wide: Any = rows.args[0] if centred else rows
        if not is_cast(wide) or not _is_like(wide, like):
            continue
        found = _variance(squares, rows, wide) if centred else _mean_square(squares, rows)
        if found is not None:
            calls = dict.fromkeys((wide, rows, *found, under, *roots))
            return ScaledRows(wide.args[0], float(eps), centred, tuple(calls))
    return None


def _divided_by_root(scaled: fx.Node) -> Iterator[tuple[fx.Node, fx.Node, tuple[fx.Node, ...]]]:
    """What may be the rows, what is under the root, and the root's calls."""
    if op_name(scaled) not in ("mul", "div") or len(scaled.args) != 2 or scaled.kwargs:
        return  # a quotient may be rounded
    both: Any = scaled.args
    is_quotient = op_name(scaled) == "div"
    root = "sqrt" if is_quotient else "rsqrt"
    for rows, column in [both] if is_quotient else [both, both[::-1]]:
        if isinstance(rows, fx.Node) and isinstance(column, fx.Node) and op_name(column) == root:
            under: Any = column.args[0]
            yield rows, under, (column,)


def _is_like(wide: fx.Node, like: torch.Tensor) -> bool:
    """Whether what is cast to single precision has the dtype and the sizes of ``like``."""
    before, single = tensor_value(wide.args[0]), tensor_value(wide)
    if before is None or single is None or single.dtype is not torch.float32:
        return False
    return (
        before.dtype is like.dtype
        and before.is_contiguous()
        and before.dim() == like.dim()
        and all(map(known_equal, before.shape, like.shape))
    )


def _mean_square(node: Any, rows: fx.Node) -> tuple[fx.Node, ...] | None:
    """The calls of ``mean(rows²)``."""
    if not _is_mean(node):
        return None
    square: Any = node.args[0]
    if op_name(square) == "pow":
        squared, power = square.args
        if power != 2:
            return None
    elif op_name(square) == "mul" and square.args[0] is square.args[1]:
        squared = square.args[0]
    else:
        return None
    if squared is rows:
        return square, node
    again = isinstance(squared, fx.Node) and _same_call(squared, rows)
    return (squared, square, node) if again else None


def _same_call(one: fx.Node, other: fx.Node) -> bool:
    """Whether a program says the same twice: ``x - mean`` in the variance and behind it."""
    return (one.op, one.target, one.args, one.kwargs) == (
        other.op,
        other.target,
        other.args,
        other.kwargs,
    )


def _variance(node: Any, rows: fx.Node, wide: fx.Node) -> tuple[fx.Node, ...] | None:
    """The calls of the variance of ``wide``, and of its mean, of which ``rows`` are the rest."""
    mean: Any = rows.args[1]
    if len(rows.args) != 2 or rows.kwargs or not isinstance(mean, fx.Node):
        return None
    if op_name(mean) == "getitem":
        both: Any = mean.args[0]
        places = op_name(node) == "getitem" and (node.args, mean.args) == ((both, 0), (both, 1))
        found = places and op_name(both) == "var_mean" and _is_population(both, wide)
        return (both, node, mean) if found else None
    if not _is_mean(mean) or mean.args[0] is not wide:
        return None
    if op_name(node) == "var":
        return (mean, node) if _is_population(node, wide) else None
    squares = _mean_square(node, rows)
    return None if squares is None else (mean, *squares)


def _is_population(node: fx.Node, wide: fx.Node) -> bool:
    """Whether a ``var`` or ``var_mean`` is of the last dimension, with no correction."""
    correction = node.kwargs.get("correction")
    keeps = node.kwargs.get("keepdim", False)
    return bool(
        node.args[:1] == (wide,)
        and _is_last(argument(node, 1, "dim", None), wide)
        and len(node.args) <= 2  # else another overload
        and correction == 0
        and keeps is True
    )


def _is_mean(node: Any) -> bool:
    """Whether a node is a mean over the last dimension, which is kept."""
    return (
        isinstance(node, fx.Node)
        and op_name(node) == "mean"
        and _is_last(argument(node, 1, "dim", None), node.args[0])
        and bool(argument(node, 2, "keepdim", False))
        and argument(node, 3, "dtype", None) is None
    )


def _is_last(dims: Any, of: Any) -> bool:
    return dims in ([-1], [of.meta["val"].dim() - 1])
