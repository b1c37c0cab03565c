"""Choose how the operands of an exception or a print reach the code after the graph.

The nodes recorded for a message leave the graph; what they read of it must be at hand when the
message is due. Inputs are. What is computed from inputs nobody writes is computed again then, by
eager's own operations, which costs nothing while nothing is raised and gives eager's digits and
eager's ``grad_fn``. The rest becomes further outputs of the graph, as does all that a line shows
which is written in every call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.capture.autograd.identity_outputs import is_another_object
from fusepass.capture.nodes.print_node import LINE, Line, is_line
from fusepass.capture.nodes.raise_node import SINK, Sink, is_message_only, is_sink
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
    kept: tuple[fx.Node, ...]
    faithful: bool


def plans(graph: fx.Graph) -> list[RaisePlan]:
    """One plan per sink and line of a graph, in program order."""
    events = [node for node in graph.nodes if is_sink(node) or is_line(node)]
    if not events:
        return []
    order = {node: position for position, node in enumerate(graph.nodes)}
    repeatable = _Repeatable(graph)
    return [_plan(node, order, repeatable) for node in events]


def operands_of(event: fx.Node) -> tuple[Any, ...]:
    """What a sink or a line makes its message of, where its recipe looks for it.

    Numbers among them were nodes while the frame was traced: floats that come in and that no
    tensor needs, which torch takes as constants in the end.
    """
    return event.args[1:]


def nodes_of(event: fx.Node) -> list[fx.Node]:
    """The operands that are not known numbers."""
    return [operand for operand in operands_of(event) if isinstance(operand, fx.Node)]


def is_rare(event: fx.Node) -> bool:
    """Whether a message is not due in every call."""
    return is_sink(event) or bool(event.args[0])


class _Repeatable:
    """Which nodes of a graph can be computed again, later, from its inputs."""

    def __init__(self, graph: fx.Graph) -> None:
        self.written = set()
        self.modes_change = False
        for node in graph.nodes:
            self.written |= set(memories(written_nodes(node)))
            self.modes_change |= is_state_change(node) and not is_message_only(node)

    def chain(self, node: fx.Node, limit: int) -> list[fx.Node] | None:
        """The calls that compute ``node`` from inputs, or None if they cannot be repeated."""
        found: list[fx.Node] = []
        for one in reached([node], _computed_from):
            if is_input(one) and self.unwritten(one):
                continue
            if is_input(one) or not self._allowed(one) or len(found) >= limit:
                return None
            found.append(one)
        return found

    def unwritten(self, node: fx.Node) -> bool:
        """Whether no call of the graph writes the memory of a node."""
        return self.written.isdisjoint(memories([node]))

    def _allowed(self, node: fx.Node) -> bool:
        if self.modes_change or node.op not in ("call_function", "call_method"):
            return False
        if node.target is select or node.target is operator.getitem:
            return self.unwritten(node)
        known = op_name(node) is not None
        return known and not is_random(node) and not written_nodes(node) and self.unwritten(node)


def only_in_messages(
    node: fx.Node, is_number: Callable[[fx.Node], bool] = comes_from_items
) -> bool:
    """Whether a number is used in messages and nowhere else.

    Args:
        node: the number.
        is_number: what is made of numbers read from tensors alone.
    """

    def users(number: fx.Node) -> list[fx.Node]:
        return [user for user in number.users if not shows(user)]

    return all(map(is_number, reached(users(node), users)))


def shows(user: fx.Node) -> bool:
    """Whether a node is a message, or only there for one."""
    return is_sink(user) or is_line(user) or is_message_only(user)


def is_input(node: fx.Node) -> bool:
    """Whether a node is an input of the graph or something the graph holds."""
    return node.op in ("placeholder", "get_attr")


def _plan(node: fx.Node, order: dict[fx.Node, int], repeatable: _Repeatable) -> RaisePlan:
    again: dict[fx.Node, None] = {}
    kept: dict[fx.Node, None] = {}
    frontier: list[fx.Node] = []
    todo = nodes_of(node)
    while todo:
        current = todo.pop()
        if current in again:
            continue
        own = is_message_only(current) or is_late_number(current)
        if own and not is_input(current):
            again[current] = None
            todo.extend(current.all_input_nodes)
        else:
            frontier.append(current)
    for current in frontier:
        if is_input(current) and repeatable.unwritten(current):
            continue
        chain = repeatable.chain(current, _MAX_AGAIN) if is_rare(node) else None
        if chain is None:
            kept[current] = None
        else:
            again.update(dict.fromkeys(chain))
    # What is kept need not be computed again for something else.
    ordered = sorted((n for n in again if n not in kept), key=order.__getitem__)
    return RaisePlan(node, tuple(ordered), tuple(kept), _shows_eagers(node, kept))


def _shows_eagers(node: fx.Node, kept: dict[fx.Node, None]) -> bool:
    """Whether tensors in a message will have the ``requires_grad`` and ``grad_fn`` of eager's."""
    if is_line(node):
        line: Line = node.meta[LINE]
        operands = operands_of(node)
        whole = [operands[i] for i in line.looks]
        unknown = [operands[i] for i, look in line.looks.items() if look is None]
        return _faithful(unknown, kept, any_kept=True) and not any(map(is_another_object, whole))
    sink: Sink = node.meta[SINK]
    shown = [n for n in (operands_of(node)[i] for i in sink.shows_grad) if isinstance(n, fx.Node)]
    whole = [n for n in (operands_of(node)[i] for i in sink.shows_whole) if isinstance(n, fx.Node)]
    if any(ROW in n.meta for n in shown):
        return False
    return _faithful(shown, kept) and not any(map(is_another_object, whole))


def _faithful(shown: list[fx.Node], kept: dict[fx.Node, None], *, any_kept: bool = False) -> bool:
    """Whether no tensor whose text shows its gradient depends on one that was handed out.

    Args:
        shown: the tensors.
        kept: what is handed out.
        any_kept: whether it matters also where what is handed out requires no grad.
    """
    nodes = reached(shown, _computed_from)
    return not any(node in kept and (any_kept or _requires_grad(node)) for node in nodes)


def _computed_from(node: fx.Node) -> list[fx.Node]:
    return [] if is_input(node) else node.all_input_nodes


def _requires_grad(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and bool(value.requires_grad)
