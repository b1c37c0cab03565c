"""Operations that are total for some of their arguments: norms, quantiles, k-th values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import fx

from fusepass.graph.dataflow.fake_sizes import is_nonempty
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal

_MOST = 16_000_000  # elements ``quantile`` takes


def _vector_norm(node: fx.Node) -> str | None:
    """No elements have no largest or smallest; any other norm of them is zero."""
    order = argument(node, 1, "p" if op_name(node) == "norm" else "ord", 2)
    return _norm_order_reason(node, 2 if order in (None, "fro") else order)


def _norm_order_reason(node: fx.Node, order: Any) -> str | None:
    if isinstance(order, str) or not isinstance(order, (int, float)):
        return f"{op_name(node)} of order {order} may fail to converge"
    if 0 <= order < math.inf or is_nonempty(argument(node, 0, "input")):
        return None
    return f"{op_name(node)} of order {order} of a tensor that may be empty raises"


def _linalg_norm(node: fx.Node) -> str | None:
    """Some norms of a matrix are computed from its singular values."""
    value = tensor_value(argument(node, 0, "input"))
    order, dim = argument(node, 1, "ord"), argument(node, 2, "dim")
    if order in (None, "fro"):
        return None
    vector = isinstance(dim, int) or (isinstance(dim, (tuple, list)) and len(dim) == 1)
    if vector or (dim is None and value is not None and value.dim() == 1):
        return _norm_order_reason(node, order)
    return f"{op_name(node)} of order {order} of a matrix may fail to converge"


def _quantile(node: fx.Node) -> str | None:
    source, q = argument(node, 0, "input"), argument(node, 1, "q")
    value = tensor_value(source)
    if not isinstance(q, (int, float)) or not 0 <= q <= 1:
        return f"{op_name(node)} at positions that may be outside [0, 1] raises"
    small = value is not None and known_equal(value.numel() <= _MOST, True)
    if not small or not is_nonempty(source):
        return f"{op_name(node)} of a tensor that may be empty or too large raises"
    return None


def _kthvalue(node: fx.Node) -> str | None:
    value = tensor_value(argument(node, 0, "input"))
    k, dim = argument(node, 1, "k"), argument(node, 2, "dim", -1)
    if value is not None and type(k) is int and type(dim) is int:
        size = value.shape[dim] if value.dim() else 1
        if k >= 1 and known_equal(size >= k, True):
            return None
    return "kthvalue: a number outside the dimension raises"


ARGUMENT_CHECKS: dict[str, Callable[[fx.Node], str | None]] = {
    "kthvalue": _kthvalue,
    "linalg_norm": _linalg_norm,
    **dict.fromkeys(("linalg_vector_norm", "norm", "vector_norm"), _vector_norm),
    **dict.fromkeys(("nanquantile", "quantile"), _quantile),
}
