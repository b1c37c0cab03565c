"""On the joint graph: a gate whose two sides are one value is that value.

    ``where(p, x, detach(x))  ->  x``

Gating (fusepass/graph/safety/gradient_gates.py) needs the form on the left while autograd derives
the backward; the mask is then a ``where`` of its own in the backward, and the forward copy of
``x``, often a weight, is pure cost. Only folded when the strides are the same, so that nothing
downstream sees another layout.
"""

from __future__ import annotations

import torch
from torch import fx

from fusepass.graph.dataflow.reached import reached

_SAME_VALUE = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def fold_gates(graph: fx.Graph) -> None:
    """Fold every gate of a joint or forward graph of ATen calls, in place."""
    changed = False
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.where.self):
        _, left, right = node.args
        base = _base(left)
        if (
            base is not _base(right)
            or not isinstance(base, fx.Node)
            or not _same_layout(node, base)
            or _is_output(node)  # an output must not become the input it equals
        ):
            continue
        node.replace_all_uses_with(base)
        graph.erase_node(node)
        changed = True
    if changed:
        graph.eliminate_dead_code()


def _base(value: object) -> object:
    while (
        isinstance(value, fx.Node) and value.op == "call_function" and value.target in _SAME_VALUE
    ):
        value = value.args[0]
    return value


def _is_output(node: fx.Node) -> bool:
    """Whether the node or a view of it is an output."""
    views = reached([node], lambda one: filter(_may_be_a_view, one.users))
    return any(user.op == "output" for view in views for user in view.users)


def _may_be_a_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(argument.alias_info is not None for argument in schema.arguments)


def _same_layout(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    return (
        isinstance(x, torch.Tensor)
        and isinstance(y, torch.Tensor)
        and x.dtype == y.dtype
        and x.shape == y.shape
        and x.stride() == y.stride()
    )
