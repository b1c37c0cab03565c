"""A norm with a weight in front of products, found in an ATen graph, as models write it.

All of these are one: rounded to a half type in front of the weight or behind it, with a constant
added to the weight, and LayerNorm, with a vector added or without.

    gain * (x.float() * rsqrt(x.float().pow(2).mean(-1, True) + eps)).to(x.dtype)
    (x.float() * rsqrt(…) * gain).to(x.dtype)
    (x.float() * rsqrt(…) * (offset + gain.float())).to(x.dtype)
    ((x.float() - mean) * rsqrt(variance + eps) * gain + shift).to(x.dtype)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.fusion.aten_to_epilogue import FLOATS, VIEWS, is_cast
from fusepass.fusion.gemm.gemm import is_gemm, operands_of
from fusepass.fusion.gemm.norm_core import scaled_rows
from fusepass.fusion.kernel_ir.epilogue import is_constant
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.graph.dataflow.readers import readers
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal

_SAME_ROW = VIEWS | {"alias"}  # what is left of a slice that takes all


@dataclass(frozen=True)
class RowNorm:
    """A norm of a matrix's rows.

    Attributes:
        source: what is normalised, of half precision and contiguous.
        vectors: the gain, and the shift if there is one: (K,), contiguous.
        norm: what is computed.
        result: in source's dtype, of its shape.
        products: those that take the result, or a reshape of it, for their x; nobody else reads it.
        spared: what nobody needs who computes the products of ``source``, in the graph's order.
    """

    source: fx.Node
    vectors: tuple[fx.Node, ...]
    norm: Norm
    result: fx.Node
    products: tuple[fx.Node, ...]
    removed: tuple[fx.Node, ...]


def norm_of(x: fx.Node) -> RowNorm | None:
    """The norm that makes a product's operand, if only products read it."""
    result = x
    while result.op == "call_function" and op_name(result) in _SAME_ROW:
        result = result.args[0]  # type: ignore[assignment]
    value = tensor_value(result)
    if value is None or value.dtype not in FLOATS[1:] or not value.dim():
        return None
    if known_equal(value.shape[-1], 0):
        return None
    users = [user for user, _ in readers(result, _keeps_rows)]
    products = [user for user in users if not _keeps_rows(user)]
    views = list(filter(_keeps_rows, users))
    if any(not _reads_as_x(one, (result, *views)) for one in products):
        return None
    for rows, gain_of, shift_of, between in _with_vectors(result):
        gain, shift = _gain(gain_of, value), _shift(shift_of, value)
        found = scaled_rows(rows, value)
        if gain is None or shift is None or found is None or (shift[0] and not found.centred):
            continue
        vector, offset, besides = gain
        vectors = (vector, *shift[0])
        spared = {*between, *found.calls, *besides, *shift[1], *views, result}
        own = {*between, *found.calls[1:]}  # not the cast of the source, which costs nothing
        if any(user not in spared for node in own for user in node.users):
            return None  # its scale is wanted besides, and so a kernel for it
        norm = Norm(found.eps, offset, found.centred, bool(shift[0]))
        made = tuple(sorted(products)), tuple(sorted(spared))
        return RowNorm(found.source, vectors, norm, result, *made)
    return None


def _keeps_rows(node: fx.Node) -> bool:
    return op_name(node) in _SAME_ROW


def _reads_as_x(node: fx.Node, named: tuple[fx.Node, ...]) -> bool:
    """Whether a node is a product that takes one of some nodes for its x and for nothing else."""
    if not is_gemm(node) or node.meta["val"].dim() != 2:
        return False
    return [one in named for one in operands_of(node)] == [False, True, False]


def _with_vectors(
    result: fx.Node,
) -> Iterator[tuple[fx.Node, fx.Node, fx.Node | None, tuple[fx.Node, ...]]]:
    """What may be the rows, the gain and the shift, and what lies between rows and result."""
    if not is_cast(result):
        for rows, gain in _factors(result):
            if is_cast(rows) and rows.meta["val"].dtype is result.meta["val"].dtype:  # before it
                scaled: Any = rows.args[0]
                yield scaled, gain, None, (rows, scaled)
        return
    inner: Any = result.args[0]
    for rows, gain in _factors(inner):
        yield rows, gain, None, (inner, rows)
    if op_name(inner) != "add" or argument(inner, 2, "alpha", 1) != 1:
        return
    for product, shift in (inner.args[:2], inner.args[1::-1]):
        if isinstance(product, fx.Node) and isinstance(shift, fx.Node):
            for rows, gain in _factors(product):
                yield rows, gain, shift, (inner, product, rows)


def _factors(node: Any) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Both nodes that a product is made of, in either order."""
    if op_name(node) == "mul":
        first, second = node.args
        if isinstance(first, fx.Node) and isinstance(second, fx.Node):
            yield first, second
            yield second, first


def _gain(node: fx.Node, result: torch.Tensor) -> tuple[fx.Node, float, tuple[fx.Node, ...]] | None:
    """The vector behind a gain, what is added to it, and the calls; None if it is none."""
    vector: Any = node
    offset, calls = 0.0, []
    if op_name(node) == "add" and argument(node, 2, "alpha", 1) == 1 and is_constant(node.args[1]):
        vector, offset = node.args  # type: ignore[assignment]
        calls.append(node)
    vector, casts = _before_a_cast(vector)
    calls += casts
    if not _is_vector(vector, result) or not math.isfinite(offset):
        return None
    if calls and node.meta["val"].dtype is not torch.float32:
        return None  # rounded where it is added
    return vector, float(offset), tuple(calls)


def _shift(
    node: fx.Node | None, result: torch.Tensor
) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]] | None:
    """The vector behind a shift, and its cast; nothing of none; None if it is no vector."""
    if node is None:
        return (), ()
    vector, casts = _before_a_cast(node)
    return ((vector,), tuple(casts)) if _is_vector(vector, result) else None


def _before_a_cast(node: Any) -> tuple[Any, list[fx.Node]]:
    """What is cast to single precision, and the cast; the node itself if it is no such cast."""
    if is_cast(node) and node.meta["val"].dtype is torch.float32:
        return node.args[0], [node]
    return node, []


def _is_vector(node: fx.Node, result: torch.Tensor) -> bool:
    """Whether there is one number for each of a result's columns."""
    value = tensor_value(node)
    return (
        value is not None
        and value.dim() == 1
        and value.dtype in FLOATS
        and value.is_contiguous()
        and known_equal(value.shape[0], result.shape[-1])
    )
