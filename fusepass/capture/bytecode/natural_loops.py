"""Find the natural loops of a code object, and where a round of each begins and ends.

A natural loop is the set of blocks from which a backward jump to its head can be reached without
passing the head. A round is cut at the head: it ends where the head is reached again, or where the
code leaves the loop.

Python up to 3.13 writes the test of ``while`` twice, in front of the loop and at its end. The head
is then the first instruction of the body, and the first test is a *guard*: it leads to the head or
past the loop. With ``continue`` in the body the first test is the head of a loop around that one;
both are one loop, whose rounds are cut at the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import networkx as nx

from fusepass.capture.bytecode.control_flow import facts_of
from fusepass.capture.bytecode.instructions import successors

SKIPPED = ("NOP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")  # they only lead on


@dataclass(frozen=True)
class Loop:
    """A natural loop.

    Attributes:
        head: index of the instruction a round begins with; for a ``for`` its ``FOR_ITER``.
        members: indices of its instructions.
        exits: ``(from, to)``: each way out, as indices of two instructions.
        iterates: whether it is a ``for``.
    """

    head: int
    members: frozenset[int]
    exits: tuple[tuple[int, int], ...]
    iterates: bool

    @property
    def tests(self) -> frozenset[int]:
        """The conditional jumps that may leave the loop."""
        return frozenset(at for at, _ in self.exits if not (self.iterates and at == self.head))


def loops_of(code: CodeType, instructions: Sequence[Any]) -> tuple[Loop, ...]:
    """The loops of a code object, each before those around it."""
    return facts_of(find_loops, code, instructions)


def find_loops(instructions: Sequence[Any]) -> tuple[Loop, ...]:
    """The loops of some instructions, each before those around it."""
    leads = successors(instructions)
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(range(len(instructions)))
    for at, (after, jump, _) in enumerate(leads):
        graph.add_edges_from((at, to) for to in (after, jump) if to is not None)
    graph = graph.subgraph({0} | nx.descendants(graph, 0))
    dominator = nx.immediate_dominators(graph, 0)
    bodies: dict[int, set[int]] = {}
    for start, head in graph.edges:
        if head <= start and _dominates(head, start, dominator):
            reverse = graph.reverse(copy=False)
            inside = (
                nx.descendants(reverse.subgraph(set(graph) - {head}), start)
                if start != head
                else set()
            )
            bodies.setdefault(head, {head}).update({start} | inside)
    fed = {head for head in bodies if instructions[head].opname == "FOR_ITER"}
    merged = _merge_repeated_tests(instructions, graph, bodies, fed)
    found = [_loop(instructions, graph, head, frozenset(body)) for head, body in merged.items()]
    return tuple(sorted(found, key=lambda loop: len(loop.members)))


def _dominates(a: int, b: int, dominator: dict[int, Any]) -> bool:
    at: int | None = b
    while at is not None and at != a:
        up: int | None = dominator.get(at)
        if up == at:
            return False
        at = up
    return at == a


def _merge_repeated_tests(
    instructions: Sequence[Any], graph: nx.DiGraph, bodies: dict[int, set[int]], fed: set[int]
) -> dict[int, set[int]]:
    """Make one loop of a body and of the first test that ``continue`` jumps back to.

    Those that an iterator feeds (``fed``) stay apart, and so does a loop that is the first
    statement of another one: no test leads to its body that Python has written twice.
    """
    merged = dict(bodies)
    for outer, around in bodies.items():
        for inner, body in bodies.items():
            if inner == outer or inner not in around or fed & {inner, outer}:
                continue
            if inner not in merged or outer not in merged:
                continue
            rest = graph.subgraph(around - {inner})
            first, last = (
                _tests_before(instructions, graph, inner, m) for m in (around - body, body)
            )
            if not first & last:
                continue
            if not any(outer in nx.descendants(rest, to) or to == outer for to in rest[outer]):
                merged[inner] = body | around
                del merged[outer]
    return merged


def _tests_before(
    instructions: Sequence[Any], graph: nx.DiGraph, head: int, members: set[int]
) -> set[Any]:
    """Where in the source the tests stand, of some members, that lead to a head.

    Python 3.12 and later have no conditional jump backwards: the test skips a jump to the head.
    """
    before = list(graph.predecessors(head))
    for at in before:
        if "JUMP" in instructions[at].opname and len(graph[at]) == 1:
            before += [test for test in graph.predecessors(at) if test not in before]
    tests = (instructions[at].positions for at in before if len(graph[at]) > 1 and at in members)
    return {place for place in tests if place is not None and place.col_offset is not None}


def _loop(
    instructions: Sequence[Any], graph: nx.DiGraph, head: int, members: frozenset[int]
) -> Loop:
    exits = tuple((at, to) for at in sorted(members) for to in graph[at] if to not in members)
    return Loop(head, members, exits, instructions[head].opname == "FOR_ITER")
