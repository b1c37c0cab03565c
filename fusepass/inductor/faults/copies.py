"""Copies that Inductor takes away, or makes otherwise than they are needed.

``y = x.clone()`` of an input that the program writes later: Inductor removes the copy, and what
reads ``y`` behind the write finds what was written. The copy is spelled as one that Inductor keeps.

``max_pool`` of an input whose height and width are swapped in memory: Inductor counts the places in
a window in the order of memory. The input is copied first, in the order of its dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import tensor_value
from fusepass.inductor.faults.call_facts import may_be_permuted
from fusepass.inductor.faults.fault import Fault, steered
from fusepass.report.decision import Decision, Station

_aten = torch.ops.aten
_LOST = Fault(
    "lost_copy",
    (156786, 197829, 198031, 198131),
    "takes a copy away of which the original is written before the copy is read",
)
_SWAPPED = Fault(
    "swapped_window",
    (197434,),
    "counts places in a window in the order of memory",
)
_COPIES = {_aten.clone.default: 0, _aten.copy.default: 1}  # operator to what is copied
_KEPT = _aten.lift_fresh_copy.default
# What stands for calls that write their operands, of kernels and operators of the program.
_WRITERS = ("auto_functionalized", "triton_kernel_wrapper_functional", "with_effects")
_POOLS = frozenset(  # by name: one is registered together with Inductor
    """aten.max_pool2d_with_indices.default aten.max_pool3d_with_indices.default
    aten.fractional_max_pool2d.default aten.fractional_max_pool3d.default
    prims._low_memory_max_pool_with_offsets.default""".split()
)


def keep_lost_copies(graph: fx.Graph) -> list[Decision]:
    """Keep such copies of a joint or forward ATen graph, in place; what was decided."""
    written = _written_inputs(graph)
    if not written:
        return []
    kept = [
        node
        for operator, place in _COPIES.items()
        for node in graph.find_nodes(op="call_function", target=operator)
        if input_of(node.args[place]) in written and _is_read_late(node)
    ]
    for node in kept:
        source = node.args[_COPIES[node.target]]
        with graph.inserting_before(node):
            copy = graph.call_function(_KEPT, (source,))
        # By its own kernel: generated code would read the original where the copy is read.
        copy.meta = {**node.meta, "should_fallback": True}
        node.replace_all_uses_with(copy)
        graph.erase_node(node)
    return [_LOST.decision("a copy is kept", Station.AFTER)] if kept else []


def _written_inputs(graph: fx.Graph) -> set[fx.Node]:
    """Inputs that a graph writes, in the end or by a call that writes its operand."""
    found = [
        node.args[0] for node in graph.find_nodes(op="call_function", target=_aten.copy_.default)
    ]
    return {base for one in found for base in [input_of(one)] if base is not None}


def input_of(node: object) -> fx.Node | None:
    """The input that a node is, or is a view of."""
    while isinstance(node, fx.Node) and node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.arguments or not node.args:
            return None
        alias = schema.arguments[0].alias_info
        if alias is None or alias.is_write:
            return None
        node = node.args[0]
    return node if isinstance(node, fx.Node) and node.op in ("placeholder", "get_attr") else None


def _is_read_late(copy: fx.Node) -> bool:
    """Whether what is computed from a copy is stored, so that it may share memory with a write."""
    return any(map(_stores, reached(copy.users, lambda user: user.users)))


def _stores(node: fx.Node) -> bool:
    """Whether a call may become one that writes its operand where that lies."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "") or getattr(node.target, "__name__", "")
    stores = "scatter" in name or "index_put" in name or "index_" in name or "masked" in name
    return node.op == "output" or stores or name == "copy_" or name.startswith(_WRITERS)


def copy_before_overlapping_store(graph: fx.Graph) -> list[Decision]:
    """Copy what is stored into though its numbers share memory, in a joint ATen graph."""
    return steered((_SPREAD,), graph, "what is stored into is copied", _copy_stored_into)


def _copy_stored_into(fault: Fault, node: fx.Node) -> None:
    node.meta = {**node.meta, "val": _copy_first(node).meta["val"]}
    node.meta.pop("tensor_meta", None)


def _has_expanded_dim(node: fx.Node) -> bool:
    x = tensor_value(node.args[0])
    if x is None:
        return False
    sizes: Sequence[Any] = x.shape  # numbers, or symbols
    strides: Sequence[Any] = x.stride()
    return any(
        isinstance(stride, int) and stride == 0 and not (isinstance(size, int) and size <= 1)
        for size, stride in zip(sizes, strides, strict=True)
    )


_SPREAD = Fault(
    "spread_store",
    (180164, 180771, 182012, 183898),
    "stores into a tensor whose numbers share memory, as the gradient of a sum",
    (
        *(_aten.slice_scatter.default, _aten.select_scatter.default),
        _aten.diagonal_scatter.default,
    ),
    _has_expanded_dim,
    fixed_in=(2, 13),
)


def copy_permuted_pool_inputs(graph: fx.Graph) -> list[Decision]:
    """Copy what such pools of a forward ATen graph read, in place; what was decided."""
    pools = [
        node
        for node in graph.nodes
        if node.op == "call_function" and str(node.target) in _POOLS and _is_swapped(node)
    ]
    for node in pools:  # by its own kernel, which lays it out at once
        _copy_first(node).meta["should_fallback"] = True
    return [_SWAPPED.decision("what is pooled is copied first", Station.AFTER)] if pools else []


def _is_swapped(node: fx.Node) -> bool:
    x = node.args[0]
    return isinstance(x, fx.Node) and _places_are_read(node) and may_be_permuted(x, _dims(node))


def _copy_first(node: fx.Node) -> fx.Node:
    """Have a call read a copy of its first operand, which is returned."""
    x, in_order = node.args[0], torch.contiguous_format
    with node.graph.inserting_before(node):
        copy = node.graph.call_function(_aten.clone.default, (x,), {"memory_format": in_order})
    copy.meta["val"] = _aten.clone.default(tensor_value(x), memory_format=in_order)
    node.args = (copy, *node.args[1:])
    return copy


def _dims(node: fx.Node) -> int:
    """How many dimensions a pool's window has."""
    kernel = node.args[1]
    alone = not isinstance(kernel, (list, tuple)) or len(kernel) == 1
    if alone:
        return 3 if "3d" in str(node.target) else 2
    return len(kernel)  # type: ignore[arg-type]


def _places_are_read(node: fx.Node) -> bool:
    """Whether anything reads the second result, which says where the largest numbers were."""
    return any(len(one.args) > 1 and one.args[1] == 1 and one.users for one in node.users)
