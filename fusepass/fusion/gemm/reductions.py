"""Reductions of what a GEMM region computes: over all rows (a bias's gradient) or all columns.

A kernel that has a tile of the product reduces it where it lies and stores one partial result per
tile; what is left to do is to reduce those. The value itself needs not be read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.fusion.aten_to_epilogue import FLOATS
from fusepass.graph.ops.op_names import argument, op_name, tensor_value

_BY = {"sum": "sum", "amax": "max"}


@dataclass(frozen=True)
class Reduction:
    """How a value is reduced: see :class:`fusepass.fusion.kernel_ir.epilogue.Output`."""

    over: str
    by: str


def reduction_of(node: fx.Node) -> Reduction | None:
    """How a node reduces its first argument, if it does so over all its rows or all its columns.

    A row is what lies along the last dimension.
    """
    name, value = op_name(node), tensor_value(node)
    source: Any = node.args[0] if node.args else None
    whole = tensor_value(source) if isinstance(source, fx.Node) else None
    if name not in _BY or value is None or whole is None or value.dtype not in FLOATS:
        return None
    if _BY[name] == "max" and value.dtype not in FLOATS[1:]:
        return None  # of what is not rounded yet: no element of the rounded ones may be equal
    given = argument(node, 1, "dim")
    count = whole.dim()
    dims = [given] if isinstance(given, int) else list(given or range(count))
    reduced = {dim % count for dim in dims} if count else set()
    if count >= 2 and reduced == set(range(count - 1)):
        return Reduction("rows", _BY[name])
    if count >= 2 and reduced == {count - 1}:
        return Reduction("columns", _BY[name])
    return None
