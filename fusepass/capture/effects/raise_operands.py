"""Choose how the operands of an exception or a print reach the code after the graph.

The nodes recorded for a message leave the graph; what they read of it must be at hand when the
message is due. Inputs are. What is computed from inputs nobody writes is computed again then, by
eager's own operations, which costs nothing while nothing is raised and gives eager's digits and
eager's ``grad_fn``. The rest becomes further outputs of the graph, as does all that a line shows
which is written in every call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import fx

from fusepass.capture.autograd.select_identity import is_another_object
from fusepass.capture.nodes import events
from fusepass.capture.nodes.select_node import select
from fusepass.capture.scalars.scalar_predicate import comes_from_items, is_late_number
from fusepass.graph.dataflow.effects import is_random, is_state_change, written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.dynamo.containers import ROW

_MAX_AGAIN = 64  # longer computations are not repeated for a message


@dataclass(frozen=True)
class RaisePlan:
    """What to run for one exception or line.

    Attributes:
        event: the sink or line node.
        again: nodes to run when the message is due, in order; operands are among them or inputs.
        kept: nodes of the graph whose values must be handed out.
        faithful: whether tensors will have the ``requires_grad`` and ``grad_fn`` of eager's.
    """

    event: fx.Node
    again: tuple[fx.Node, ...]
    kept: frozenset[fx.Node]
    faithful: bool


def plans(graph: fx.Graph) -> list[RaisePlan]:
    """One plan per sink and line of a graph, in program order."""
    found = [node for node in graph.nodes if events.is_event(node)]
    if not found:
        return []
    order = {node: position for position, node in enumerate(graph.nodes)}
    repeatable = _Repeatable(graph)
    return [_plan(node, order, repeatable) for node in found]


class _Repeatable:
    """Which nodes of a graph can be computed again, later, from its inputs."""

    def __init__(self, graph: fx.Graph) -> None:
        self.written = {key for node in graph.nodes for key in memories(written_nodes(node))}
        self.modes_change = any(
            is_state_change(n) and not events.is_message_only(n) for n in graph.nodes
        )

    def chain(self, node: fx.Node) -> list[fx.Node] | None:
        """The calls that compute ``node`` from inputs, or None if they cannot be repeated."""
        found: list[fx.Node] = []
        for one in reached([node], _computed_from):
            if is_input(one) and self.unwritten(one):
                continue
            if is_input(one) or not self._allowed(one) or len(found) >= _MAX_AGAIN:
                return None
            found.append(one)
        return found

    def unwritten(self, node: fx.Node) -> bool:
        """Whether no call of the graph writes the memory of a node."""
        return self.written.isdisjoint(memories([node]))

    def _allowed(self, node: fx.Node) -> bool:
        if self.modes_change or node.op not in ("call_function", "call_method"):
            return False
        pure = op_name(node) is not None and not is_random(node) and not written_nodes(node)
        return (pure or node.target in (select, operator.getitem)) and self.unwritten(node)


def only_in_messages(
    node: fx.Node, is_number: Callable[[fx.Node], bool] = comes_from_items
) -> bool:
    """Whether a number goes into messages only, or into what ``is_number`` takes for numbers."""

    def users(number: fx.Node) -> list[fx.Node]:
        return [user for user in number.users if not events.shows(user)]

    return all(map(is_number, reached(users(node), users)))


def is_input(node: fx.Node) -> bool:
    """Whether a node is an input of the graph or something the graph holds."""
    return node.op in ("placeholder", "get_attr")


def _plan(node: fx.Node, order: dict[fx.Node, int], repeatable: _Repeatable) -> RaisePlan:
    def own(one: fx.Node) -> bool:
        return (events.is_message_only(one) or is_late_number(one)) and not is_input(one)

    found = list(
        reached(events.nodes_of(node), lambda one: one.all_input_nodes if own(one) else ())
    )
    again = set(filter(own, found))
    kept: set[fx.Node] = set()
    for current in found:
        if current in again or (is_input(current) and repeatable.unwritten(current)):
            continue
        chain = repeatable.chain(current) if events.is_rare(node) else None
        if chain is None:
            kept.add(current)
        else:
            again.update(chain)
    # What is kept need not be computed again for something else.
    ordered = sorted(again - kept, key=order.__getitem__)
    return RaisePlan(node, tuple(ordered), frozenset(kept), _shows_eagers(node, kept))


def _shows_eagers(node: fx.Node, kept: set[fx.Node]) -> bool:
    """Whether tensors in a message will have the ``requires_grad`` and ``grad_fn`` of eager's."""
    event: events.Sink | events.Line = node.meta[events.EVENT]
    line = isinstance(event, events.Line)
    if isinstance(event, events.Line):
        shown = _operands(node, event.looks)
        unknown = _operands(node, [i for i, look in event.looks.items() if look is None])
    else:
        shown, unknown = _operands(node, event.shows_whole), _operands(node, event.shows_grad)
        if any(ROW in operand.meta for operand in unknown):
            return False
    made_of = reached(unknown, _computed_from)
    lost = filter(kept.__contains__, made_of)
    if any(line or getattr(tensor_value(one), "requires_grad", False) for one in lost):
        return False  # what is handed out has no gradient function of eager's
    return not any(map(is_another_object, shown))


def _operands(event: fx.Node, positions: Iterable[int]) -> list[fx.Node]:
    held = events.operands_of(event)
    return [one for one in (held[i] for i in positions) if isinstance(one, fx.Node)]


def _computed_from(node: fx.Node) -> list[fx.Node]:
    return [] if is_input(node) else node.all_input_nodes
