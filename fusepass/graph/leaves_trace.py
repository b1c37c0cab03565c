"""Whether a captured graph may be called just to see how long that takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import fx

from fusepass import torch_private
from fusepass.graph.canonical import op_name
from fusepass.graph.effects import is_random
from fusepass.torch_private.graphs import higher_order_name

_NAMESPACES = ("aten", "prims", "fusepass")
# They call graphs, which are looked at themselves, and do nothing else.
_HIGHER_ORDER = frozenset(
    """
    autograd_function_apply checkpoint cond hints_wrapper invoke_subgraph map map_impl
    tag_activation_checkpoint while_loop wrap wrap_activation_checkpoint
    """.split()
)
_BUILTINS = frozenset("abs float getattr int len max min pow round slice sum tuple".split())


def traces_of_calling(parts: Iterable[fx.GraphModule]) -> Iterator[str]:
    """What a call of a graph would leave behind besides its results and what it writes in place.

    Only what is known to leave nothing is passed over: operators of others may do anything, and
    so may Python functions that Dynamo was told not to look into.

    Args:
        parts: the graph's module and those inside it.
    """
    for node in (node for part in parts for node in part.graph.nodes):
        if is_random(node):
            yield f"{node.name} draws random numbers"
        elif not _is_known(node):
            yield f"nobody knows what {node.name} does besides computing"


def _is_known(node: fx.Node) -> bool:
    target = node.target
    if node.op == "call_module":
        return False
    if node.op != "call_function":
        return True
    higher_order = higher_order_name(target)
    if higher_order is not None:
        return higher_order in _HIGHER_ORDER
    registered = torch_private.operator_name(target)
    if registered is not None:
        return registered[0] in _NAMESPACES
    module = getattr(target, "__module__", None) or ""
    if module == "builtins":
        return getattr(target, "__name__", "") in _BUILTINS
    return module.partition(".")[0] == "fusepass" or op_name(node) is not None
