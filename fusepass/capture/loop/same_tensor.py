"""Keep track of where a loop hands a tensor on unchanged, so that eager has one tensor, not two.

``while err > tol: x = step(x)`` leaves *x itself* where it makes no round, and so may a ``break``
in the first round. The node of the loop gives a fresh tensor. Where the tensor that a loop begins
with is an input, a flag is carried that says whether the value still is that tensor, and a
``select`` behind the loop chooses: the checks of branches then apply. Every other way in which two
values may be one tensor is noted, and looked at once the graph is complete.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import networkx as nx
import torch
from torch import fx

from fusepass.capture.loop.carried import Numbers
from fusepass.capture.loop.trace_round import Carried, Start, Traced, enter
from fusepass.capture.nodes.loop_node import LOOP, LoopFacts
from fusepass.capture.nodes.select_node import select
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import Why
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories, memory_of
from fusepass.graph.dataflow.reached import reached
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack

SAME = "fusepass_same_"  # prefix of the name of a carried flag
_TEXT = "a tensor that the loop hands on unchanged is visible outside under another name"


def add_flags(translator: Any, numbers: Numbers, start: Start, traced: Traced) -> dict[str, Any]:
    """Carry flags that say whether values are what they began as.

    Returns:
        For each name whose value may be what it began as, which is an input or requires grad (the
        loop is then under ``no_grad``): the carried flag, or None if it only is where there is no
        round.
    """
    flags: dict[str, Any] = {}
    for one in list(traced.carried):
        if one.initial is None or one.number is not None:
            continue
        first, inside, final = (v.as_proxy().node for v in (one.initial, one.inside, one.final))
        if not _is_input(first) and not first.meta["example_value"].requires_grad:
            continue
        same = _same(translator, numbers, final, inside)
        if same is not None:
            made = Carried(SAME + one.name, traced.true, number="bool")
            enter(translator, made)
            args = (made.inside.as_proxy(), same.as_proxy())
            made.final = stack.wrap_call(translator, "call_function", torch.logical_and, args, {})
            traced.carried.append(made)
            flags[one.name] = made
        elif start.may_skip:
            flags[one.name] = None
    return flags


def _is_input(node: fx.Node) -> bool:
    keys = memories([node])
    inputs = (n for n in node.graph.nodes if n.op in ("placeholder", "get_attr"))
    return not set(keys).isdisjoint(memories(inputs))


def _same(translator: Any, numbers: Numbers, node: fx.Node, inside: fx.Node) -> Any:
    """A tracked 0-d bool: whether a value is what the round was given; None if it never is."""
    known: dict[fx.Node, Any] = {}

    def answer(node: fx.Node) -> Any:
        if node not in known:
            known[node] = work_out(node)
        return known[node]

    def work_out(node: fx.Node) -> Any:
        if node is inside:
            return numbers.full(translator, True)
        chosen = _choice(node)
        if chosen is None:
            if memory_of(node) == memory_of(inside):
                raise Refusal(Reason.ALIAS, "the loop hands on a view of a tensor it was given")
            return None
        predicate, sides = chosen
        found = [answer(side) for side in sides]
        if found == [None, None]:
            return None
        made = [numbers.full(translator, False) if one is None else one for one in found]
        args = (stack.proxy_of(translator, predicate), *(one.as_proxy() for one in made))
        return stack.wrap_call(translator, "call_function", torch.where, args, {})

    return answer(node)


def _choice(node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, fx.Node]] | None:
    """The predicate and both sides of a selected value; None for any other."""
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return None
    args: Any = node.args
    made, position = args
    if made.target is not select:
        return None
    predicate, taken, other = made.args
    return predicate, (taken[position], other[position])


def _roots(node: fx.Node) -> Iterator[fx.Node]:
    return (one for one in reached([node], _sides) if _choice(one) is None)


def _sides(node: fx.Node) -> tuple[fx.Node, ...]:
    chosen = _choice(node)
    return () if chosen is None else chosen[1]


def facts_of(
    traced: Traced, start: Start, operands: list[fx.Node], flagged: Any, stays: list[Carried]
) -> LoopFacts:
    """Which results may be one tensor with what, but for those that a select decides."""
    tensors = [(i, one) for i, one in enumerate(traced.carried)]
    tensors = [(i, one) for i, one in tensors if one.number is None and one not in stays]
    left = {
        i: {key for root in _roots(one.final.as_proxy().node) for key in memories([root])}
        for i, one in tensors
    }
    began = {i: set(memories([one.initial.as_proxy().node])) for i, one in tensors if one.initial}
    pairs: set[tuple[int, str, int]] = set()
    for i, one in tensors:
        for j, other in tensors:
            if i < j and not left[i].isdisjoint(left[j]):
                pairs.add((i, "result", j))
            if other.inside is None:
                continue
            given = memories([other.inside.as_proxy().node])
            may_be = not left[i].isdisjoint(given)
            if may_be and not (i == j and one.name in flagged):
                pairs.add((i, "first", j))
            if i < j and start.may_skip and i in began and not began[i].isdisjoint(began[j]):
                pairs.add((i, "result", j))
        if start.may_skip and one.initial is not None and one.name not in flagged:
            pairs.add((i, "first", i))
        for k, operand in enumerate(operands):
            if not left[i].isdisjoint(memories([operand])):
                pairs.add((i, "operand", k))
    return LoopFacts(start.site, frozenset(pairs))


def lost_loops(graph: fx.Graph, allow_fresh_output: bool) -> dict[int, Why]:
    """The loops of a complete graph whose results may be tensors that are seen by another name."""
    lost: dict[int, Why] = {}
    nodes = list(graph.nodes)
    inputs = set(memories(n for n in nodes if n.op in ("placeholder", "get_attr")))
    outputs = set(memories(graph.output_node().all_input_nodes))
    for at, node in enumerate(nodes):
        facts = node.meta.get(LOOP)
        if facts is None:
            continue
        classes = _classes(node, facts)
        results = _result_memory(node)
        written = {key for later in nodes[at:] for key in memories(written_nodes(later))}
        for found in nx.connected_components(classes):
            ours = found & set(results.values())
            seen = ours & outputs and len(found & (inputs | outputs)) > 1
            if (seen and not allow_fresh_output) or (ours and found & written):
                lost[facts.site] = (Reason.ALIAS, _TEXT)
    return lost


def _result_memory(node: fx.Node) -> dict[int, int]:
    keys = {}
    for user in node.users:
        for key in memories([user]):
            keys[user.args[1]] = key
    return keys  # type: ignore[return-value]


def _classes(node: fx.Node, facts: LoopFacts) -> nx.Graph:
    """Memories that may be one in eager, connected."""
    results = _result_memory(node)
    shared = nx.Graph()
    _, carried, operands = node.args
    for i, kind, j in facts.shares:
        if i not in results:
            continue
        if kind == "result":
            others = [results[j]] if j in results else []
        else:
            others = memories([carried[j] if kind == "first" else operands[j]])  # type: ignore[index]
        for other in others:
            shared.add_edge(results[i], other)
    return shared
