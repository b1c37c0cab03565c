"""Where the operands of an exception come from once the graph has run.

The nodes recorded for a message leave the graph; what they read of it must be at hand when the
exception is due. Inputs are. What is computed from inputs nobody writes is computed again then, by
eager's own operations, which costs nothing while nothing is raised and gives eager's digits and
eager's ``grad_fn``. The rest becomes further outputs of the graph.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import fx

from fusepass.capture.handed_on import is_another_object
from fusepass.capture.scalar_predicate import comes_from_items
from fusepass.capture.select import select
from fusepass.capture.sink import SINK, Sink, is_sink, only_for_message
from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.effects import is_random, is_state_change, written_nodes
from fusepass.graph.memory import memories

_MAX_AGAIN = 64  # longer computations are not repeated for a message


@dataclass(frozen=True)
class Plan:
    """What to run for one exception.

    Attributes:
        sink: the sink node.
        again: nodes to run when the exception is due, in order; operands are among them or inputs.
        kept: nodes of the graph whose values must be handed out.
        faithful: whether tensors will have the ``requires_grad`` and ``grad_fn`` of eager's.
    """

    sink: fx.Node
    again: tuple[fx.Node, ...]
    kept: tuple[fx.Node, ...]
    faithful: bool


def plans(graph: fx.Graph) -> list[Plan]:
    """One plan per sink of a graph, in program order."""
    sinks = [node for node in graph.nodes if is_sink(node)]
    if not sinks:
        return []
    order = {node: position for position, node in enumerate(graph.nodes)}
    repeatable = _Repeatable(graph)
    return [_plan(node, order, repeatable) for node in sinks]


class _Repeatable:
    """Which nodes of a graph can be computed again, later, from its inputs."""

    def __init__(self, graph: fx.Graph) -> None:
        self.written = set()
        self.modes_change = False
        for node in graph.nodes:
            self.written |= set(memories(written_nodes(node)))
            self.modes_change |= is_state_change(node) and not only_for_message(node)

    def chain(self, node: fx.Node, limit: int) -> list[fx.Node] | None:
        """The calls that compute ``node`` from inputs, or None if they cannot be repeated."""
        found: dict[fx.Node, None] = {}
        todo = [node]
        while todo:
            current = todo.pop()
            if current in found or (is_input(current) and self._unwritten(current)):
                continue
            if is_input(current) or not self._allowed(current) or len(found) >= limit:
                return None
            found[current] = None
            todo.extend(current.all_input_nodes)
        return list(found)

    def _unwritten(self, node: fx.Node) -> bool:
        return self.written.isdisjoint(memories([node]))

    def _allowed(self, node: fx.Node) -> bool:
        if self.modes_change or node.op not in ("call_function", "call_method"):
            return False
        if node.target is select or node.target is operator.getitem:
            return self._unwritten(node)
        known = op_name(node) is not None
        return known and not is_random(node) and not written_nodes(node) and self._unwritten(node)


def only_in_messages(node: fx.Node) -> bool:
    """Whether a number is used in the messages of exceptions and nowhere else."""
    return all(
        is_sink(user)
        or only_for_message(user)
        or (comes_from_items(user) and only_in_messages(user))
        for user in node.users
    )


def is_input(node: fx.Node) -> bool:
    """Whether a node is an input of the graph or something the graph holds."""
    return node.op in ("placeholder", "get_attr")


def _plan(node: fx.Node, order: dict[fx.Node, int], repeatable: _Repeatable) -> Plan:
    sink: Sink = node.meta[SINK]
    again: dict[fx.Node, None] = {}
    kept: dict[fx.Node, None] = {}
    frontier: list[fx.Node] = []
    todo = list(node.args[1:])
    while todo:
        current = todo.pop()
        if not isinstance(current, fx.Node) or current in again:
            continue
        own = only_for_message(current) or comes_from_items(current)
        if own and not is_input(current):
            again[current] = None
            todo.extend(current.all_input_nodes)
        else:
            frontier.append(current)
    for current in frontier:
        if is_input(current) and repeatable._unwritten(current):
            continue
        chain = repeatable.chain(current, _MAX_AGAIN)
        if chain is None:
            kept[current] = None
        else:
            again.update(dict.fromkeys(chain))
    # What is kept need not be computed again for something else.
    ordered = sorted((n for n in again if n not in kept), key=order.__getitem__)
    shown = [n for n in (node.args[1:][i] for i in sink.shows_grad) if isinstance(n, fx.Node)]
    whole = [n for n in (node.args[1:][i] for i in sink.shows_whole) if isinstance(n, fx.Node)]
    faithful = _faithful(shown, kept) and not any(map(is_another_object, whole))
    return Plan(node, tuple(ordered), tuple(kept), faithful)


def _faithful(shown: list[fx.Node], kept: dict[fx.Node, None]) -> bool:
    """Whether no tensor whose text shows its gradient depends on one that was handed out."""
    todo, seen = list(shown), set()
    while todo:
        node = todo.pop()
        if node in kept and _requires_grad(node):
            return False
        if node not in seen and not is_input(node):
            seen.add(node)
            todo.extend(node.all_input_nodes)
    return True


def _requires_grad(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and bool(value.requires_grad)
