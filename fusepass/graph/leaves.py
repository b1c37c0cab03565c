"""Which leaves that require grad a value depends on, and through which calls.

Eager gives a leaf ``grad=None`` when nothing in the loss depends on it, and optimizers skip it
then; a zero gradient instead would let weight decay move it. So the arms of a branch must depend
on the same leaves.
"""

from __future__ import annotations

from torch import fx

from fusepass.graph.canonical import tensor_value


def grad_leaves(node: fx.Node, memo: dict[fx.Node, frozenset[fx.Node]]) -> frozenset[fx.Node]:
    """Inputs of the graph that require grad and from which a gradient path leads to ``node``.

    Args:
        node: any node; nodes whose value does not require grad have no leaves.
        memo: results so far, shared between calls on one graph.
    """
    order: list[fx.Node] = [node]
    while order:
        current = order[-1]
        if current in memo:
            order.pop()
            continue
        if not _carries_grad(current):
            memo[current] = frozenset()
            order.pop()
            continue
        if current.op in ("placeholder", "get_attr"):
            memo[current] = frozenset({current})
            order.pop()
            continue
        missing = [source for source in current.all_input_nodes if source not in memo]
        if missing:
            order.extend(missing)
            continue
        memo[current] = frozenset().union(*(memo[source] for source in current.all_input_nodes))
        order.pop()
    return memo[node]


def _carries_grad(node: fx.Node) -> bool:
    value = tensor_value(node)
    if value is not None:
        return bool(value.requires_grad)
    parts = node.meta.get("example_value")
    if isinstance(parts, (tuple, list)):  # chunk, split, select: a call with several results
        return any(getattr(part, "requires_grad", False) for part in parts)
    return False
