"""Whether the calls of a match may be taken out of their graph, and what must then be redirected.

The replacement runs at one place. It reads its operands there, and its results go to the
readers of the match's outputs. So nothing else may read a value inside the match, nothing may write
an operand in between, and no operand may need a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx
from torch import fx

from fusepass.graph.dataflow.effects import is_state_change
from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.ops.normal_call import normal_call
from fusepass.graph.terms.term_graph import TermGraph, in_place_origin
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import Reject


@dataclass(frozen=True)
class Surroundings:
    """What is asked of a graph for every match in it, found once.

    Attributes:
        terms: the graph's terms.
        epoch: node to how many switches of autocast or grad mode come before it.
        stream: node to the CUDA stream it is issued on, as far as the graph says.
    """

    terms: TermGraph
    epoch: dict[fx.Node, int] = field(default_factory=dict)
    stream: dict[fx.Node, object] = field(default_factory=dict)

    @staticmethod
    def of(terms: TermGraph) -> Surroundings:
        """Walk the graph once."""
        around = Surroundings(terms)
        switches = issued = 0
        for node in terms.graph.nodes:
            switches += is_state_change(node)
            issued += _is_stream_call(node)
            around.epoch[node] = switches
            annotated = (node.meta.get("custom") or {}).get("stream")
            around.stream[node] = (issued, annotated)
        return around


@dataclass(frozen=True)
class Cut:
    """How to take a match out.

    Attributes:
        nodes: calls to erase, in graph order.
        before: the replacement is put in front of this node; None: behind the last of ``nodes``.
        readers: for each output, the nodes that read it and the node they name it by.
    """

    nodes: tuple[fx.Node, ...]
    before: fx.Node | None
    readers: tuple[tuple[tuple[fx.Node, fx.Node], ...], ...]


def cut(
    around: Surroundings,
    nodes: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    operands: Sequence[fx.Node],
) -> Cut | Reject:
    """Decide whether ``nodes`` can go, given that ``outputs`` are handed on."""
    place = around.terms.position
    ordered = tuple(sorted(nodes, key=place.__getitem__))
    inside = set(ordered)
    first, last = ordered[0], ordered[-1]
    readers = [_readers(around.terms, output, inside) for output in outputs]
    handed = {(reader, name) for found in readers for reader, name in found}
    for node in ordered:
        if node in operands:
            return Reject(Reason.EXTRA_USER, f"{node.name} is also an operand of the rule", node)
        for user in node.users:
            if user not in inside and (user, node) not in handed:
                return Reject(Reason.EXTRA_USER, _used_text(node, user), user)
    late = _late_reader(around.terms, ordered, inside, handed)
    if late is not None:
        return late
    after_all = last.next
    reads = [place[reader] for found in readers for reader, _ in found]
    start = max((place[operand] for operand in operands), default=-1)
    target = after_all
    if reads and min(reads) <= place[last]:
        target = next(r for found in readers for r, _ in found if place[r] == min(reads))
        if start >= place[target]:
            return _order(around.terms, readers, operands, target)
    for problem in (
        _written_between(around, ordered, operands, target),
        _is_seen_through_view(around.terms, ordered, outputs),
        _mode_changes(around, first, ordered, target),
    ):
        if problem is not None:
            return problem
    early = None if target is after_all else target
    return Cut(ordered, early, tuple(map(tuple, readers)))


def _late_reader(
    terms: TermGraph,
    nodes: tuple[fx.Node, ...],
    inside: set[fx.Node],
    handed: set[tuple[fx.Node, fx.Node]],
) -> Reject | None:
    """Who reads, by any name and later, what a call inside the match wrote in place."""
    place = terms.position
    for node in nodes:
        call = normal_call(node)
        if call is None or not call.inplace:
            continue
        for name in _aliases(terms, node):
            for user in name.users:
                if place[user] > place[node] and user not in inside and (user, name) not in handed:
                    text = f"{user.name} reads {name.name} after {node.name} has written to it"
                    return Reject(Reason.EXTRA_USER, text, user)
    return None


def written_later(
    terms: TermGraph, operands: Sequence[fx.Node], nodes: Sequence[fx.Node]
) -> fx.Node | None:
    """The first call after a match that writes to one of its operands."""
    end = max(terms.position[node] for node in nodes)
    writes = [w for operand in operands for w in terms.writes(operand)]
    return next((w for w in writes if terms.position[w] > end and w not in nodes), None)


def _readers(
    terms: TermGraph, output: fx.Node, inside: set[fx.Node]
) -> list[tuple[fx.Node, fx.Node]]:
    """Who reads an output, by whichever name its memory has at that point."""
    place = terms.position
    found = []
    for name in _aliases(terms, output):
        later = [u for u in name.users if name is output or place[u] > place[output]]
        found += [(user, name) for user in later if user not in inside]
    return found


def _aliases(terms: TermGraph, node: fx.Node) -> list[fx.Node]:
    """Nodes that name the memory ``node`` leaves its value in, when it works in place."""
    origin = in_place_origin(node)
    return [node] if origin is node else terms.aliases_of_whole(origin)


def _used_text(node: fx.Node, user: fx.Node) -> str:
    if user.op == "output":
        return f"{node.name}, inside the match, is also an output of the graph"
    return f"{node.name}, inside the match, is also read by {user.name}"


def _order(
    terms: TermGraph,
    readers: list[list[tuple[fx.Node, fx.Node]]],
    operands: Sequence[fx.Node],
    target: fx.Node,
) -> Reject:
    """An output is read before the last operand exists: a cycle once the match is one node."""
    graph = nx.DiGraph()
    for node in terms.graph.nodes:
        for source in node.all_input_nodes:
            graph.add_edge(source, node)
    for found in readers:
        for reader, _ in found:
            for operand in operands:
                if reader in graph and operand in graph and nx.has_path(graph, reader, operand):
                    text = f"{operand.name}, an operand, is computed from an output of the match"
                    return Reject(Reason.CYCLE, text, reader)
    return Reject(Reason.CYCLE, f"{target.name} reads an output before all operands exist", target)


def _written_between(
    around: Surroundings,
    nodes: tuple[fx.Node, ...],
    operands: Sequence[fx.Node],
    target: fx.Node,
) -> Reject | None:
    place = around.terms.position
    start = min(place[nodes[0]], place.get(target, len(place)))
    stop = max(place[nodes[-1]], place.get(target, len(place)) - 1)
    inside = set(nodes)
    for operand in operands:
        for write in around.terms.writes(operand):
            if write not in inside and start <= place[write] <= stop:
                text = f"{write.name} writes to {operand.name} between the matched operations"
                return Reject(Reason.ALIAS, text, write)
    return None


def _is_seen_through_view(
    terms: TermGraph, nodes: tuple[fx.Node, ...], outputs: Sequence[fx.Node]
) -> Reject | None:
    """A call in place must not be seen through another view of what it writes.

    One inside the match may have been handed on before the write, not be read after it.
    """
    place = terms.position
    for node in nodes:
        call = normal_call(node)
        if call is None or not call.inplace:
            continue
        known = set(_aliases(terms, node))
        end = max(place[output] for output in outputs)
        for other in terms.graph.nodes:
            if place[other] > end or other in known:
                continue
            earlier = place[other] < place[node]
            stale = earlier and any(place[user] > place[node] for user in other.users)
            if other in nodes and not stale:
                continue
            if memory_of(other) == memory_of(node):
                text = f"{other.name} is a view of what {node.name} writes in place"
                return Reject(Reason.ALIAS, text, other)
    return None


def _mode_changes(
    around: Surroundings, first: fx.Node, nodes: tuple[fx.Node, ...], target: fx.Node
) -> Reject | None:
    for node in nodes:
        if around.epoch[node] != around.epoch[first]:
            text = "autocast or grad mode is switched between the matched operations"
            return Reject(Reason.VARIANT, text, node)
        if around.stream[node] != around.stream[first]:
            return Reject(Reason.STREAM, "the matched operations run on two streams", node)
    if target.op != "output" and target not in nodes:
        issued = target.prev
        if issued in around.epoch and around.epoch[issued] != around.epoch[first]:
            text = "autocast or grad mode is switched before an output is read"
            return Reject(Reason.VARIANT, text, target)
    return None


def _is_stream_call(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(getattr(node.target, "__name__", node.target)).lower()
    module = str(getattr(node.target, "__module__", ""))
    return "stream" in name or ("streams" in module and "event" in name)
