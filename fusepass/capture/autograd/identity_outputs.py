"""Keep a branch if its arm returns a parameter or leaf and code outside could see the difference.

``w = self.weight if p else self.weight * 2``: in eager w may be the parameter itself, a leaf that
requires grad even where autograd is off; what is selected is neither. Whether w is such an object
is a question a program rarely asks; where it does, or could, the branch stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fusepass.capture.frame_state import frame_of
from fusepass.capture.nodes.select_node import BRANCH, HIDES_GRAD, select, selects_of
from fusepass.capture.restarts import Why, restart_without
from fusepass.graph.dataflow.effects import is_state_change
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.stack import node_of
from fusepass.torch_private.fx.graphs import storage_key

_MARKS = frozenset("requires_grad_ retain_grad register_hook backward is_inference".split())


def on_identity_query(translator: Any, tensor: Any, what: str) -> None:
    """Take back the branches that decide an attribute of a tracked tensor that the program reads.

    ``what`` is the attribute, ``__class__`` for the type.
    """
    frame = frame_of(translator.output)
    node = node_of(tensor) if frame is not None and frame.sites else None
    if frame is None or node is None:
        return
    text = f"an arm may hand on a tensor unchanged, and the program asks for its {what}"
    chosen = [s for s in frame.sites if s.select is not None]
    sites = [s.branch.site for s in chosen if _depends_on_arm(s.select, node, what)]
    restart_without(frame, dict.fromkeys(sites, (Reason.ALIAS, text)))


def _depends_on_arm(chosen: fx.Node, node: fx.Node, what: str) -> bool:
    """Whether an attribute of a tensor depends on which arm of a select was taken."""
    keys = memories([node])
    arms: Any = chosen.args[1:]
    for position, key in _results(chosen):
        pair = [arm[position] for arm in arms]
        special = what != "requires_grad" and any(map(_is_special, pair))
        if key in keys and (special or _hides(chosen, position)):
            return True
    return False


def is_another_object(node: fx.Node) -> bool:
    """Whether the text of a selected tensor may differ from that of what the arm taken left."""
    return any(_depends_on_arm(each, node, "__class__") for each in selects_of(node.graph))


def hidden_grad_escapes(graph: fx.Graph) -> dict[int, Why]:
    """Sites whose result requires grad in eager for one outcome, where that could be seen.

    Without autograd a result of an operation never requires grad, but a parameter handed on does.
    It can be seen where it leaves the graph or autograd is switched on again.
    """
    lost: dict[int, Why] = {}
    for node in graph.nodes:
        if HIDES_GRAD in node.meta:
            keys = {key for position, key in _results(node) if _hides(node, position)}
            if _escapes(node, keys):
                text = (
                    "a result requires grad in one arm only, and leaves the code without autograd"
                )
                lost[node.meta[BRANCH].site] = (Reason.NONE_GRAD, text)
    return lost


def _escapes(chosen: fx.Node, keys: set[int]) -> bool:
    """Whether what lives in this memory goes anywhere but into operations without autograd."""
    after, enabled = False, False
    for node in chosen.graph.nodes:
        if node is chosen:
            after = True
            continue
        if after and is_state_change(node):
            enabled = op_name(node) != "_set_grad_enabled" or bool(node.args[0])
        if not after or keys.isdisjoint(memories(node.all_input_nodes)):
            continue
        if node.target is select or op_name(node) is None or op_name(node) in _MARKS or enabled:
            return True
    return False


def _results(chosen: fx.Node | None) -> Iterator[tuple[int, int]]:
    """Position and memory of each result of a select."""
    if chosen is not None:
        for position, value in enumerate(chosen.meta["example_value"]):
            yield position, storage_key(value)


def _hides(chosen: fx.Node, position: int) -> bool:
    return position in chosen.meta.get(HIDES_GRAD, ())


def _is_special(node: fx.Node) -> bool:
    """Whether a value of an arm may be a leaf of autograd, or a parameter."""
    value = tensor_value(node)
    if value is None or isinstance(value, torch.nn.Parameter):
        return True
    handed_on = node.op in ("placeholder", "get_attr") or node.target is select
    return value.requires_grad and (handed_on or value.is_leaf)
