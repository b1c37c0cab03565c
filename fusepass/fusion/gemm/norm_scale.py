"""The scale of a norm in front of a product, which can as well be applied behind it.

``(diag(r) x) w = diag(r) (x w)``: where rows of x are divided by their root mean square (RMSNorm
without a weight), the product can be taken of x as it is, and its rows scaled where it lies. The
normalised x needs not be stored then. A weight of the norm is one number per column of x, which
does not commute with the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.fusion.aten_to_epilogue import FLOATS, VIEWS, is_cast
from fusepass.fusion.gemm.gemm import is_gemm, operands_of
from fusepass.fusion.kernel_ir.epilogue import is_constant
from fusepass.graph.dataflow.readers import readers
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal


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
