"""On Inductor's graph: copy outputs that share memory written afterwards.

    s = scatter(x, …); t = scatter(s, …); x.copy_(t); return s   ->   …; return clone(s)

Inductor makes a scatter into an input in place where the input is written in the end, and takes no
output for a reader: ``s`` would show what ``t`` stored. Such an output was a copy once, of the
program (``y = x.clone()``) or kept for the backward, which Inductor took for nothing to do.

Run behind the pass that takes copies away, and in front of the one that makes writes in place.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

_STORES = frozenset(
    """as_strided_scatter diagonal_scatter select_scatter slice_scatter index_put
    _unsafe_index_put""".split()
)
# What stands for calls that write their operands, of kernels and operators of the program.
_WRITERS = ("auto_functionalized", "triton_kernel_wrapper_functional")


def copy_shared_outputs(graph: fx.Graph) -> None:
    """Copy each output that Inductor may let share the memory of an input that is written."""
    written = {
        node.args[0]
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    }
    written = {node for node in written if _is_input(node)}
    if not written:
        return
    output = next(iter(reversed(graph.nodes)))
    copies: dict[fx.Node, fx.Node] = {}
    for node in output.all_input_nodes:
        if _may_be_written(node, written):
            with graph.inserting_after(node):  # behind copy_ it would not count either
                copy = graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
            if isinstance(copy.meta.get("val"), torch.Tensor):
                copy.meta["val"] = torch.empty_like(copy.meta["val"])
            copies[node] = copy
    if copies:
        output.args = fx.map_arg(output.args, lambda n: copies.get(n, n))


def _is_input(node: object) -> bool:
    return isinstance(node, fx.Node) and node.op in ("placeholder", "get_attr")


def _may_be_written(node: fx.Node, written: set[Any]) -> bool:
    """Whether a value is a view of what a store into a written input gives."""
    base = _without_views(node)
    if _is_store(base):
        return _store_base(base) in written
    if base.target is operator.getitem and isinstance(base.args[0], fx.Node):
        name = getattr(base.args[0].target, "__name__", "")
        operands = base.args[0].all_input_nodes
        return name.startswith(_WRITERS) and any(_store_base(n) in written for n in operands)
    return False


def _store_base(node: fx.Node) -> fx.Node:
    """What a chain of stores and views began with."""
    node = _without_views(node)
    while _is_store(node) and isinstance(node.args[0], fx.Node):
        node = _without_views(node.args[0])
    return node


def _without_views(node: fx.Node) -> fx.Node:
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_store(node: fx.Node) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    return node.op == "call_function" and getattr(packet, "__name__", "") in _STORES


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write
