"""Refuse operations that cannot stand in a captured loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.cond_legality import check_held, foreign_call
from fusepass.capture.nodes.events import EVENT, MESSAGE
from fusepass.capture.nodes.loop_node import KEYED
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.scalar_predicate import is_read_back
from fusepass.graph.dataflow.effects import is_random, is_state_change, written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.tensor_kinds import special_or_transformed_reason
from fusepass.options import Options
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.wording import operation
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import unknown_sizes


def check_node(options: Options, node: fx.Node) -> None:
    """Refuse a node of a round that a loop cannot hold.

    Raises:
        Refusal: with the reason.
    """
    why = special_or_transformed_reason(node)
    if why is not None:
        raise Refusal(Reason.UNTRACEABLE, f"in the loop, {why}")
    if EVENT in node.meta or MESSAGE in node.meta:
        raise Refusal(Reason.SIDE_EFFECT, "the loop prints, raises or binds an attribute")
    if is_random(node):
        raise Refusal(Reason.RANDOM_OP, f"{op_name(node)} draws random numbers in the loop")
    if is_state_change(node):
        raise Refusal(Reason.SIDE_EFFECT, f"{op_name(node)} changes a mode in the loop")
    value: Any = node.meta.get("example_value")
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            text = "a value in the loop requires grad, and the loop would have to be differentiated"
            raise Refusal(Reason.NO_GRADIENT, text)
        if any(unknown_sizes(size) for size in value.shape):
            raise Refusal(Reason.SIZE, f"{op_name(node)} gives a tensor whose size depends on data")
    name = foreign_call(node)
    if name is not None:
        raise Refusal(Reason.UNTRACEABLE, f"a loop in the graph cannot hold {operation(name)}")
    if options.codegen == "inductor" and not is_read_back(node):  # numbers become tensors
        check_held(Refusal(Reason.LOOP, "the loop is to be captured"), [node])


def check_keyed(options: Options, nodes: list[fx.Node]) -> None:
    """Refuse a key of tensors that torch.while_loop cannot hold as Inductor gets it.

    Inductor makes a copy of the view by such a key (patterns/loop_to_while.py), so the view has to
    be used up before its memory is written. The other parts of the key have to give a view.

    Raises:
        Refusal: with the reason.
    """
    if options.codegen == "eager":
        return
    order = {node: at for at, node in enumerate(nodes)}
    for node in nodes:
        if KEYED not in node.meta:
            continue
        key: Any = node.args[1]
        if not all(map(_gives_a_view, key)):
            text = "the loop indexes a tensor by a number that changes and by a list or truth value"
            raise Refusal(Reason.SIZE, text)
        if tensor_value(node) is None:
            continue
        keys = set(memories([node]))
        views = {one for one in reached([node], _users) if not keys.isdisjoint(memories([one]))}
        last = max((order.get(user, 0) for view in views for user in view.users), default=0)
        for written in nodes[order[node] + 1 :]:
            targets = written_nodes(written)
            own = not views.isdisjoint(targets)
            if own or (order[written] < last and not keys.isdisjoint(memories(targets))):
                text = "the loop writes a tensor while it uses a part that a changing key chose"
                raise Refusal(Reason.SIDE_EFFECT, text)


def _gives_a_view(part: Any) -> bool:
    """Whether a part of a key leaves the result a view; a list or a truth value does not."""
    return part is None or part is Ellipsis or type(part) in (int, slice, fx.Node)


def _users(node: fx.Node) -> list[fx.Node]:
    return [*node.users]
