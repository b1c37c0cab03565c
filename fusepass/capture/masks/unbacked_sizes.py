"""Allow sizes that depend on data while an arm is traced, and remove them afterwards.

``x[mask] += 1`` selects a tensor of unknown size, for which Dynamo breaks the graph. Inside an arm
it is traced with a symbol for the size, and where it turns out to be an update of the elements
under the mask, nothing of that size is left. Otherwise the branch is kept.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from fusepass.capture.masks.lowering import lower_selections
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import (
    forget_count,
    forget_sizes,
    sizes_bound,
    unknown_sizes,
)
from fusepass.torch_private.fx.graphs import tree_flatten


def sizes_of(nodes: list[fx.Node]) -> frozenset[Any]:
    """The unknown sizes that these nodes introduce."""
    return frozenset().union(*(sizes_bound(node.meta) for node in nodes))


def forget_counts(nodes: list[fx.Node]) -> None:
    """Forget the counts of masks made among these nodes: what follows cannot refer to them."""
    sizes = sizes_of(nodes)
    for node in nodes if sizes else ():
        for operand in (node, *node.all_input_nodes):
            value = tensor_value(operand)
            if value is not None:
                forget_count(value, sizes)


def remove_data_sizes(translator: Any, arms: dict[bool, list[fx.Node]]) -> frozenset[fx.Node]:
    """Lower masked updates in both arms; no unknown size is left in them.

    Returns:
        Nodes erased from the graph, which nothing may use any more.

    Raises:
        Refusal: an arm uses an unknown size for something else.
    """
    sizes = sizes_of([node for nodes in arms.values() for node in nodes])
    erased: frozenset[fx.Node] = frozenset()
    for nodes in arms.values():
        erased |= lower_selections(nodes, translator.fake_mode, exact=True).erased
    check_no_sizes([node for nodes in arms.values() for node in nodes], sizes)
    forget_sizes(translator, sizes)
    return erased


def leave_sizes(translator: Any, nodes: list[fx.Node]) -> None:
    """Forget the unknown sizes of nodes that nothing will use any more."""
    sizes = sizes_of(nodes)
    forget_counts(nodes)
    forget_sizes(translator, sizes, [node.meta for node in nodes])


def check_no_sizes(nodes: list[fx.Node], sizes: frozenset[Any]) -> None:
    """Refuse nodes that depend on one of these sizes.

    Raises:
        Refusal: they do.
    """
    for node in nodes if sizes else ():
        parts = tree_flatten(node.meta.get("example_value"))[0]
        if any(unknown_sizes(part) & sizes for part in parts):
            name = op_name(node) or "an operation"
            text = f"in an arm {name} gives a tensor whose size depends on what a tensor holds"
            raise Refusal(Reason.UNTRACEABLE, text)
