"""GEMMs with M = 1 that Inductor wrote as sums for its autotuning, turned back into GEMMs.

With coordinate descent (``max-autotune``) Inductor's decompositions turn such a GEMM into
``sum(x.unsqueeze(2) * w.unsqueeze(0), 1)`` in single precision, before the rules after autograd see
it. For these rules it becomes a GEMM again; what they leave alone is restored.

Inductor's passes also replace ``mm + z`` by ``addmm`` and the reverse. ``addmm`` rounds once, a
GEMM and a sum twice, and torch 2.11 does not mark the new call. So the program's own calls are
marked before these passes run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.fusion.aten_to_epilogue import CASTS, FLOATS, is_cast
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal

_PRODUCTS = ("aten.mm.default", "aten.addmm.default")
_RECOMPOSED = "fusepass_decomposed"
_ATEN = torch.ops.aten
_CONVERT = torch.ops.prims.convert_element_type.default


def recompose(gm: fx.GraphModule) -> None:
    """Write products of one row as ``aten.mm``, in place."""
    for total in list(gm.graph.nodes):
        operands = _product(total)
        if operands is None:
            continue
        with gm.graph.inserting_before(total):
            mm = _insert_call(gm.graph, total, _ATEN.mm.default, *operands)
            mm.meta[_RECOMPOSED] = True
            wide = _insert_call(gm.graph, total, _CONVERT, mm, torch.float32)
            wide.meta[_RECOMPOSED] = True
        rounded = [user for user in total.users if _rounds(user, mm.meta["val"].dtype)]
        for last in rounded:
            last.replace_all_uses_with(mm)
        total.replace_all_uses_with(wide, delete_user_cb=lambda user, of=rounded: user not in of)
        for last in rounded or [total]:
            _erase(last)
        if not wide.users:
            gm.graph.erase_node(wide)


def decompose(gm: fx.GraphModule) -> None:
    """Write those that are left as they were, in place."""
    for mm in list(gm.graph.nodes):
        if mm.meta.get(_RECOMPOSED) and mm.target is _ATEN.mm.default:
            _decompose_mm(mm)


def _product(total: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The half-precision operands of a product of one row that a node is, before it is rounded.

    Inductor drops the rounding where a cast back to single precision follows. That changes nothing
    for what was one product in the program; a user's own sum in single precision stays.
    """
    if op_name(total) != "sum" or list(total.args[1:2]) != [[1]] or total.args[2:] or total.kwargs:
        return None
    product: Any = total.args[0]
    if op_name(product) != "mul" or len(product.users) != 1:
        return None
    left, right = (_column(one, dim) for one, dim in zip(product.args, (2, 0), strict=True))
    if left is None or right is None:
        return None
    x, w = left.meta["val"], right.meta["val"]
    fits = known_equal(x.shape[1], w.shape[0])  # else it is spread along one
    fits &= isinstance(x.shape[0], int) and x.shape[0] == 1
    fits &= x.dtype == w.dtype and x.dtype in FLOATS[1:]
    casts: list[Any] = [one.args[0] for one in product.args]  # of both operands
    was_one = all(map(_is_part_of_matmul, (total, *casts)))
    fits &= was_one or all(_rounds(user, x.dtype) for user in total.users)
    return (left, right) if fits and total.users else None


def _is_part_of_matmul(node: fx.Node) -> bool:
    """Whether Inductor made a node of a product; casts that the user wrote are no part of one."""
    return str(node.meta.get("original_aten")) in _PRODUCTS  # copies of it are not equal


def _rounds(node: fx.Node, dtype: torch.dtype) -> bool:
    """Whether a node casts to a dtype and does nothing else."""
    value = tensor_value(node)
    return is_cast(node) and value is not None and value.dtype is dtype


def _column(node: Any, dim: int) -> fx.Node | None:
    """The matrix of which a node is ``convert(matrix, float32).unsqueeze(dim)``."""
    if not isinstance(node, fx.Node) or op_name(node) != "unsqueeze" or node.args[1] != dim:
        return None
    wide: Any = node.args[0]
    value = tensor_value(wide)
    if not is_cast(wide) or value is None or value.dtype is not torch.float32:
        return None
    matrix: Any = wide.args[0]
    value = tensor_value(matrix)
    return matrix if value is not None and value.dim() == 2 else None


def _erase(node: fx.Node) -> None:
    """Erase a node and what only it used, up to what is no step of a product."""
    steps, todo = {*CASTS, "sum", "mul", "unsqueeze"}, [node]
    while todo:
        unused = todo.pop()
        if not unused._erased and not unused.users and op_name(unused) in steps:
            todo += unused.all_input_nodes
            unused.graph.erase_node(unused)


def _insert_call(graph: fx.Graph, like: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A call in place of a node, whose notes it takes over."""
    node = graph.call_function(target, args)
    node.meta.update({key: one for key, one in like.meta.items() if key != _RECOMPOSED})
    node.meta["val"] = target(*fx.map_arg(args, lambda one: one.meta["val"]))
    return node


def _decompose_mm(mm: fx.Node) -> None:
    graph, dtype = mm.graph, mm.meta["val"].dtype
    wide = [user for user in mm.users if user.meta.get(_RECOMPOSED) and op_name(user) in CASTS]
    with graph.inserting_before(mm):
        x, w = (_insert_call(graph, mm, _CONVERT, matrix, torch.float32) for matrix in mm.args)
        rows = _insert_call(graph, mm, _ATEN.unsqueeze.default, x, 2)
        columns = _insert_call(graph, mm, _ATEN.unsqueeze.default, w, 0)
        product = _insert_call(graph, mm, _ATEN.mul.Tensor, rows, columns)
        total = _insert_call(graph, mm, _ATEN.sum.dim_IntList, product, [1])
        for one in wide:
            one.replace_all_uses_with(total)
            graph.erase_node(one)
        if mm.users:
            mm.replace_all_uses_with(_insert_call(graph, mm, _CONVERT, total, dtype))
    graph.erase_node(mm)


_MARK = "fusepass_own_sum"


def mark_own_sums(graph: fx.Graph) -> None:
    """Mark each ``addmm`` of a joint or forward graph, before Inductor's passes."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default):
        node.meta[_MARK] = True


def made_by_inductor(node: fx.Node) -> bool:
    """Whether an ``addmm`` of a graph behind Inductor's passes was a product and a sum."""
    return _MARK not in node.meta
