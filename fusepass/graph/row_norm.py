"""A norm with a weight in front of products, found in an ATen graph: RMSNorm as models write it.

All three of these are one: rounded to a half type in front of the weight or behind it, and with a
constant added to the weight.

    gain * (x.float() * rsqrt(x.float().pow(2).mean(-1, True) + eps)).to(x.dtype)
    (x.float() * rsqrt(…) * gain).to(x.dtype)
    (x.float() * rsqrt(…) * (offset + gain.float())).to(x.dtype)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.graph.canonical import argument, op_name, tensor_value
from fusepass.graph.epilogue import is_constant
from fusepass.graph.epilogue_of_aten import FLOATS, VIEWS, is_cast
from fusepass.graph.gemm import is_gemm, operands_of
from fusepass.graph.norm import Norm

_SAME_ROW = VIEWS | {"alias"}  # what is left of a slice that takes all


@dataclass(frozen=True)
class RowNorm:
    """A norm of a matrix's rows.

    Attributes:
        source: what is normalised, of half precision and contiguous.
        gain: (K,), contiguous.
        norm: what is computed.
        result: in source's dtype, of its shape.
        products: those that take the result, or a reshape of it, for their x; nobody else reads it.
        spared: what nobody needs who computes the products of ``source``, in the graph's order.
    """

    source: fx.Node
    gain: fx.Node
    norm: Norm
    result: fx.Node
    products: tuple[fx.Node, ...]
    spared: tuple[fx.Node, ...]


def norm_of(x: fx.Node) -> RowNorm | None:
    """The norm that makes a product's operand, if only products read it."""
    result = x
    while result.op == "call_function" and op_name(result) in _SAME_ROW:
        result = result.args[0]  # type: ignore[assignment]
    value = tensor_value(result)
    if value is None or value.dtype not in FLOATS[1:] or not value.dim():
        return None
    readers = list(_readers(result))
    products = [user for user, is_view in readers if not is_view]
    views = [user for user, is_view in readers if is_view]
    if any(not _takes_as_x(one, (result, *views)) for one in products):
        return None
    for scaled, gain_of, between in _with_gain(result):
        gain = _gain(gain_of, value)
        found = _scaled_rows(scaled, value)
        if gain is None or found is None:
            continue
        source, eps, inside = found
        vector, offset, besides = gain
        spared = {*between, *inside, *besides, *views, result}
        own = {*between, *inside[1:]}  # not the cast of the source, which costs nothing
        if any(user not in spared for node in own for user in node.users):
            return None  # its scale is wanted besides, and so a kernel for it
        made = tuple(sorted(products)), tuple(sorted(spared))
        return RowNorm(source, vector, Norm(eps, offset), result, *made)
    return None


def _readers(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """Everything that reads a node, or a reshape of it; and whether it is such a reshape."""
    for user in node.users:
        is_view = op_name(user) in _SAME_ROW
        yield user, is_view
        if is_view:
            yield from _readers(user)


def _takes_as_x(node: fx.Node, named: tuple[fx.Node, ...]) -> bool:
    """Whether a node is a product that takes one of some nodes for its x and for nothing else."""
    if not is_gemm(node) or node.meta["val"].dim() != 2:
        return False
    return [one in named for one in operands_of(node)] == [False, True, False]


def _with_gain(result: fx.Node) -> Iterator[tuple[fx.Node, fx.Node, tuple[fx.Node, ...]]]:
    """What may be the scaled rows, what the gain, and what lies between them and the result."""
    inner: Any = result
    between: tuple[fx.Node, ...] = ()
    if is_cast(result):  # rounded behind the gain
        inner = result.args[0]
        between = (inner,)
    if op_name(inner) != "mul":
        return
    for rows, gain in (inner.args, inner.args[::-1]):
        if not isinstance(rows, fx.Node) or not isinstance(gain, fx.Node):
            continue
        if is_cast(result):
            yield rows, gain, (*between, rows)
        elif is_cast(rows) and rows.meta["val"].dtype is result.meta["val"].dtype:  # before it
            yield rows.args[0], gain, (rows, rows.args[0])  # type: ignore[misc]


def _gain(node: fx.Node, result: torch.Tensor) -> tuple[fx.Node, float, tuple[fx.Node, ...]] | None:
    """The vector behind a gain, what is added to it, and the calls; None if it is none."""
    vector: Any = node
    offset, calls = 0.0, []
    if op_name(node) == "add" and argument(node, 2, "alpha", 1) == 1 and is_constant(node.args[1]):
        vector, offset = node.args  # type: ignore[assignment]
        calls.append(node)
    if is_cast(vector) and vector.meta["val"].dtype is torch.float32:
        calls.append(vector)
        vector = vector.args[0]
    value = tensor_value(vector)
    if value is None or value.dim() != 1 or value.dtype not in FLOATS:
        return None
    if calls and node.meta["val"].dtype is not torch.float32:
        return None  # rounded where it is added
    if not math.isfinite(offset):
        return None
    fits = torch_private.known_equal(value.shape[0], result.shape[-1])
    return (vector, float(offset), tuple(calls)) if fits and value.is_contiguous() else None


def _scaled_rows(
    scaled: fx.Node, result: torch.Tensor
) -> tuple[fx.Node, float, tuple[fx.Node, ...]] | None:
    """Of ``x.float() * rsqrt(mean of squares + eps)``: x, eps and the calls; None of others."""
    value = tensor_value(scaled)
    if op_name(scaled) != "mul" or value is None or value.dtype is not torch.float32:
        return None
    both: Any = scaled.args, scaled.args[::-1]
    for wide, column in both:
        if not is_cast(wide) or not isinstance(column, fx.Node) or op_name(column) != "rsqrt":
            continue
        source: Any = wide.args[0]
        before, single = tensor_value(source), tensor_value(wide)
        if before is None or single is None or single.dtype is not torch.float32:
            continue
        if before.dtype is not result.dtype or not before.is_contiguous():
            continue
        alike = len(before.shape) == result.dim() and all(
            map(torch_private.known_equal, before.shape, result.shape)
        )
        found = _mean_of_squares(column, wide)
        if alike and found is not None:
            eps, inside = found
            return source, eps, (wide, *inside)
    return None


def _mean_of_squares(column: fx.Node, wide: fx.Node) -> tuple[float, tuple[fx.Node, ...]] | None:
    """Of ``rsqrt(mean(wide², -1, keepdim) + eps)``: eps, and the calls."""
    under: Any = column.args[0]
    if op_name(under) != "add" or argument(under, 2, "alpha", 1) != 1:
        return None
    mean, eps = under.args[:2]
    if op_name(mean) != "mean" or not is_constant(eps) or not eps > 0:
        return None
    square, dims, keeps = mean.args[0], argument(mean, 1, "dim", None), argument(mean, 2, "keepdim")
    last = wide.meta["val"].dim() - 1
    if (
        not math.isfinite(eps)
        or dims not in ([-1], [last])
        or not keeps
        or argument(mean, 3, "dtype", None) is not None
    ):
        return None
    if op_name(square) == "pow":
        squared = square.args == (wide, 2)
    else:
        squared = op_name(square) == "mul" and square.args == (wide, wide)
    return (float(eps), (square, mean, under, column)) if squared else None
