"""Products of one row as Inductor writes them for its autotuning, and back.

With coordinate descent (``max-autotune``) its decompositions turn a product of one row into
``sum(x.unsqueeze(2) * w.unsqueeze(0), 1)`` in single precision, before any of our rules after
autograd sees it. For them it becomes a product again; what they leave alone is left as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.epilogue_of_aten import CASTS, FLOATS

_AGAIN = "fusepass_decomposed"
_ATEN = torch.ops.aten
_CONVERT = torch.ops.prims.convert_element_type.default


def recompose(gm: fx.GraphModule) -> None:
    """Write products of one row as ``aten.mm``, in place."""
    for last in list(gm.graph.nodes):
        operands = _product(last)
        if operands is None:
            continue
        with gm.graph.inserting_before(last):
            mm = gm.graph.call_function(_ATEN.mm.default, operands)
        mm.meta.update(last.meta, **{_AGAIN: True})
        last.replace_all_uses_with(mm)
        _erase(last)


def decompose(gm: fx.GraphModule) -> None:
    """Write those that are left as they were, in place."""
    for mm in list(gm.graph.nodes):
        if mm.meta.get(_AGAIN) and mm.target is _ATEN.mm.default:
            _written_out(mm)


def _product(last: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The half-precision operands of a product of one row, of which a node is the last step."""
    value = tensor_value(last)
    if not _is_cast(last) or value is None or value.dtype not in FLOATS[1:]:
        return None
    total: Any = last.args[0]
    if op_name(total) != "sum" or list(total.args[1:2]) != [[1]] or total.args[2:] or total.kwargs:
        return None
    product: Any = total.args[0]
    if op_name(product) != "mul" or {len(one.users) for one in (total, product)} != {1}:
        return None
    left, right = (_column(one, dim) for one, dim in zip(product.args, (2, 0), strict=True))
    if left is None or right is None:
        return None
    x, w = left.meta["val"], right.meta["val"]
    fits = torch_private.known_equal(x.shape[1], w.shape[0])  # else it is spread along one
    fits &= isinstance(x.shape[0], int) and x.shape[0] == 1
    return (left, right) if fits and x.dtype == w.dtype == value.dtype else None


def _is_cast(node: fx.Node) -> bool:
    """Whether a node changes nothing but the dtype."""
    return op_name(node) in CASTS and not node.kwargs.keys() - {"dtype"}


def _column(node: Any, dim: int) -> fx.Node | None:
    """The matrix of which a node is ``convert(matrix, float32).unsqueeze(dim)``."""
    if not isinstance(node, fx.Node) or op_name(node) != "unsqueeze" or node.args[1] != dim:
        return None
    wide: Any = node.args[0]
    value = tensor_value(wide)
    if not _is_cast(wide) or value is None or value.dtype is not torch.float32:
        return None
    matrix: Any = wide.args[0]
    value = tensor_value(matrix)
    return matrix if value is not None and value.dim() == 2 else None


def _erase(node: fx.Node) -> None:
    """Erase a node and what only it used, up to what is no step of a product."""
    if node.users or op_name(node) not in {*CASTS, "sum", "mul", "unsqueeze"}:
        return
    inputs = node.all_input_nodes
    node.graph.erase_node(node)
    for one in inputs:
        _erase(one)


def _written_out(mm: fx.Node) -> None:
    graph, dtype = mm.graph, mm.meta["val"].dtype

    def call(target: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta.update({key: one for key, one in mm.meta.items() if key != _AGAIN})
        node.meta["val"] = target(*fx.map_arg(args, lambda one: one.meta["val"]))
        return node

    with graph.inserting_before(mm):
        x, w = (call(_CONVERT, matrix, torch.float32) for matrix in mm.args)
        rows, columns = call(_ATEN.unsqueeze.default, x, 2), call(_ATEN.unsqueeze.default, w, 0)
        total = call(_ATEN.sum.dim_IntList, call(_ATEN.mul.Tensor, rows, columns), [1])
        last = call(_CONVERT, total, dtype)
    mm.replace_all_uses_with(last)
    graph.erase_node(mm)
