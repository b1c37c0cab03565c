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
from fusepass.fusion.gemm.region import is_gemm, operands_of
from fusepass.fusion.kernel_ir.epilogue import is_constant
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.graph.dataflow.readers import readers
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal

# --- Rows divided by their root mean square or by their standard deviation ------------------------
#     x * rsqrt(mean(x²) + eps)                          of RMSNorm
#     (x - mean(x)) * rsqrt(mean((x - mean(x))²) + eps)  of LayerNorm
#
# in single precision, of a half type; means are over the last dimension. ``var`` and ``var_mean``
# are spellings of the latter, ``… / sqrt(…)`` of both.


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

    The source has the dtype and the sizes of ``like``, and is contiguous.
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
        removed: nodes that nothing reads once ``source`` makes the products, in graph order.
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


# --- The scale of a norm in front of a product, which can as well be applied behind it ------------
# ``(diag(r) x) w = diag(r) (x w)``: where rows of x are divided by their root mean square (RMSNorm
# without a weight), the product can be taken of x as it is, and its rows scaled where it lies. The
# normalised x needs not be stored then. A weight of the norm is one number per column of x, which
# does not commute with the product.


@dataclass(frozen=True)
class RowScale:
    """A matrix of which each row is multiplied by a number.

    Attributes:
        source: the matrix before, of half precision and contiguous.
        column: the numbers, in fp32; the last dimension is 1.
        spared: the nodes that nobody needs who scales the product instead, in the graph's order.
    """

    source: fx.Node
    column: fx.Node
    spared: tuple[fx.Node, ...]


def row_scale(x: fx.Node) -> RowScale | None:
    """What the operand of a GEMM is scaled by, if it is there for GEMMs only.

    Reshapes between are looked through as long as rows stay rows.

    Numbers are those of a norm, ``rsqrt`` of something to which a positive number is added: they
    are finite, so that an infinity in x has the same effect on both sides.
    """
    views, last = [], x.meta["val"].shape[-1]
    while x.op == "call_function" and op_name(x) in VIEWS:
        views.append(x)
        x = x.args[0]  # type: ignore[assignment]
        before = tensor_value(x)
        if before is None or not before.dim() or not known_equal(before.shape[-1], last):
            return None
    value = tensor_value(x)
    if not is_cast(x) or value is None or value.dtype not in FLOATS[1:]:
        return None
    scaled: Any = x.args[0]
    if op_name(scaled) != "mul" or not _is_single(scaled) or not _read_only_by_gemms(x):
        return None
    for wide, column in (scaled.args, scaled.args[::-1]):
        source: Any = wide.args[0] if isinstance(wide, fx.Node) and is_cast(wide) else None
        before, numbers = tensor_value(source), tensor_value(column)
        if before is None or numbers is None or before.dtype is not value.dtype:
            continue
        if not _is_single(wide):
            continue  # a cast that drops something
        alike = len(before.shape) == len(value.shape) and all(
            map(known_equal, before.shape, value.shape)
        )
        if (
            alike
            and before.is_contiguous()
            and _is_column(numbers, before)
            and _is_rsqrt_of_norm(column)
        ):
            return RowScale(source, column, (wide, scaled, x, *reversed(views)))
    return None


def _read_only_by_gemms(node: fx.Node) -> bool:
    """Whether every reader of a node takes it for its x, through reshapes or at once."""
    return all(
        _is_view(user)
        or (is_gemm(user) and [one is read for one in operands_of(user)] == [False, True, False])
        for user, read in readers(node, _is_view)
    )


def _is_view(node: fx.Node) -> bool:
    return op_name(node) in VIEWS


def _is_single(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and value.dtype is torch.float32


def _is_column(numbers: torch.Tensor, matrix: torch.Tensor) -> bool:
    """Whether there is one number for each row."""
    known, shape = known_equal, numbers.shape
    if numbers.dtype is not torch.float32 or numbers.dim() != matrix.dim():
        return False
    return known(shape[-1], 1) and all(map(known, shape[:-1], matrix.shape[:-1]))


def _is_rsqrt_of_norm(column: fx.Node) -> bool:
    """Whether they are finite, or no numbers: ``rsqrt(mean of squares + a positive number)``."""
    under: Any = column.args[0] if op_name(column) == "rsqrt" else None
    if op_name(under) != "add" or argument(under, 2, "alpha", 1) != 1:
        return False
    mean: Any = under.args[0]
    square: Any = mean.args[0] if op_name(mean) == "mean" else None
    if op_name(square) == "pow":
        squared = square.args[1] == 2
    else:
        squared = op_name(square) == "mul" and square.args[0] is square.args[1]
    number = under.args[1]
    return squared and is_constant(number) and number > 0
