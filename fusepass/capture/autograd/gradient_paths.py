"""Say through which calls of a graph gradients pass, and to which operands."""

from __future__ import annotations

from torch import fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.ops.op_names import op_name, tensor_value

# Calls that look at some operands only for their shape or dtype: no gradient goes there.
_ONLY_FIRST = frozenset(
    "expand_as type_as view_as reshape_as to new_zeros new_ones new_full".split()
)


def carries_grad(node: fx.Node) -> bool:
    """Whether a gradient can pass through what a node stands for."""
    value = tensor_value(node)
    if value is not None:
        return bool(value.requires_grad)
    parts = node.meta.get("example_value")
    if isinstance(parts, (tuple, list)):  # chunk, split, select: a call with several results
        return any(getattr(part, "requires_grad", False) for part in parts)
    return False


def differentiable_sources(node: fx.Node) -> list[fx.Node]:
    """The operands of a call to which it may send gradients."""
    if not carries_grad(node) and not written_nodes(node):
        return []
    sources = list(node.all_input_nodes)
    return sources[:1] if op_name(node) in _ONLY_FIRST else sources


def is_grad_input(node: fx.Node) -> bool:
    """Whether a node is a tensor from outside the graph that requires grad."""
    return node.op in ("placeholder", "get_attr") and carries_grad(node)
