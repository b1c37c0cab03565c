"""Copies that Inductor takes away, or makes otherwise than they are needed.

``y = x.clone()`` of an input that the program writes later: Inductor removes the copy, and what
reads ``y`` behind the write finds what was written. The copy is spelled as one that Inductor keeps.

``max_pool`` of an input whose height and width are swapped in memory: Inductor counts the places in
a window in the order of memory. The input is copied first, in the order of its dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.faults.fault import Fault, value_of
from fusepass.faults.layouts import may_lie_otherwise
from fusepass.report.decision import Decision, Station

_aten, _prims = torch.ops.aten, torch.ops.prims
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
_POOLS: tuple[Any, ...] = (
    *(_aten.max_pool2d_with_indices.default, _aten.max_pool3d_with_indices.default),
    *(_aten.fractional_max_pool2d.default, _aten.fractional_max_pool3d.default),
    _prims._low_memory_max_pool_with_offsets.default,
)


def keep_copies(graph: fx.Graph) -> list[Decision]:
    """Keep such copies of a joint or forward ATen graph, in place; what was decided."""
    written = _written_inputs(graph)
    if not written:
        return []
    kept = [
        node
        for operator, place in _COPIES.items()
        for node in graph.find_nodes(op="call_function", target=operator)
        if _input_of(node.args[place]) in written and _is_read_late(node)
    ]
    for node in kept:
        source = node.args[_COPIES[node.target]]
        with graph.inserting_before(node):
            copy = graph.call_function(_KEPT, (source,))
        copy.meta = dict(node.meta)
        node.replace_all_uses_with(copy)
        graph.erase_node(node)
    return [_LOST.steered("a copy is kept", Station.AFTER)] if kept else []


def _written_inputs(graph: fx.Graph) -> set[fx.Node]:
    """Inputs that a graph writes, in the end or by a call that writes its operand."""
    found = [
        node.args[0] for node in graph.find_nodes(op="call_function", target=_aten.copy_.default)
    ]
    return {base for one in found for base in [_input_of(one)] if base is not None}


def _input_of(node: object) -> fx.Node | None:
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
    seen, waiting = {copy}, [copy]
    while waiting:
        for user in waiting.pop().users:
            if user in seen:
                continue
            if _stores(user):
                return True
            seen.add(user)
            waiting.append(user)
    return False


def _stores(node: fx.Node) -> bool:
    """Whether a call may become one that writes its operand where that lies."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "") or getattr(node.target, "__name__", "")
    stores = "scatter" in name or "index_put" in name or "index_" in name or "masked" in name
    return node.op == "output" or stores or name == "copy_" or name.startswith(_WRITERS)


def copy_swapped(graph: fx.Graph) -> list[Decision]:
    """Copy what such pools of a forward ATen graph read, in place; what was decided."""
    found = []
    for operator in _POOLS:
        for node in graph.find_nodes(op="call_function", target=operator):
            x = node.args[0]
            dims = 3 if "3d" in str(operator) or _dims(node) == 3 else 2
            if not isinstance(x, fx.Node) or not _places_are_read(node):
                continue
            if not may_lie_otherwise(x, dims):
                continue
            with graph.inserting_before(node):
                copy = graph.call_function(
                    _aten.clone.default, (x,), {"memory_format": torch.contiguous_format}
                )
            value = value_of(x)
            copy.meta = {key: held for key, held in x.meta.items() if key == "stack_trace"}
            copy.meta["val"] = _aten.clone.default(value, memory_format=torch.contiguous_format)
            copy.meta["should_fallback"] = True  # by its own kernel, which lays it out at once
            node.args = (copy, *node.args[1:])
            found.append(node)
    return [_SWAPPED.steered("what is pooled is copied first", Station.AFTER)] if found else []


def _dims(node: fx.Node) -> int:
    kernel = node.args[1]
    return len(kernel) if isinstance(kernel, (list, tuple)) else 0


def _places_are_read(node: fx.Node) -> bool:
    """Whether anything reads the second result, which says where the largest numbers were."""
    return any(len(one.args) > 1 and one.args[1] == 1 and one.users for one in node.users)
