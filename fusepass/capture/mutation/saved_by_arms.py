"""Keep a branch if an arm saves for a backward what is written, or writes what is saved.

Autograd refuses a backward that reads a tensor written since it was saved. Both arms of a selection
save what they read, so a backward could fail because of the arm that eager did not take. A copy
for the arm would hide the error where eager did take it. So the branch is kept.

The write may follow in the same graph, or behind a graph break. There the rest of the function is
other graphs, or eager mode: what that writes can only be read off the bytecode, and of calls in it
only where the function called is known. What arms write is written into the memory once, whichever
arm is taken. Within one graph such a write is refused at once (shadow_copies.py). An earlier graph
of the same function is known by what it left on record: the names under which the function holds
what that graph may have saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import fx

from fusepass.capture.bytecode.writes_behind import NULL, Held, Values, memory_written
from fusepass.capture.frame_state import Frame
from fusepass.capture.mutation.aliased_inputs import written_back
from fusepass.capture.nodes.select_node import BRANCH, Branch, select, sites_around
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name
from fusepass.graph.safety.saved_for_backward import values_saved_for_backward
from fusepass.report import log
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.frame_end import (
    Tracked,
    begins_with_gradients,
    breaks_here,
    code_as_written,
    held_storages,
    pending_attribute,
    storage_of,
    tensors_given,
    tracked,
    tracked_local,
)
from fusepass.torch_private.dynamo.guards import guard_on

Lost = dict[int, tuple[Reason, str]]  # sites that cannot stay captured, each with the reason
FAILS = "the backward would fail although eager did not take that arm"
_TEXT = (
    "an arm writes a tensor that a graph in front of a graph break may have saved for its "
    "backward: it would fail although eager did not take that arm"
)


def written_after_saved(graph: fx.Graph) -> Lost:
    """Sites whose arms may save what is written afterwards, with the reason of each."""
    saved = saved_in_arms(graph)
    if not saved:
        return {}
    nodes, lost = list(graph.nodes), Lost()
    history = WriteHistory(graph, nodes[-1])
    for node, kept, sites in saved:
        later = history.moments[node] + 1
        if history.is_written(kept, later, len(nodes)):
            why = (Reason.SIDE_EFFECT, _reason(node, kept, nodes[later:]))
            lost |= {site: why for site in sites if site not in lost}
    return lost


def saved_in_arms(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node, list[int]]]:
    """The nodes in arms with what their backwards read, and the sites they are in."""
    selects = [n for n in graph.nodes if n.target is select and BRANCH in n.meta]
    if not any(value.requires_grad for n in selects for value in n.meta["example_value"]):
        return []
    branches: dict[int, Branch] = {n.meta[BRANCH].site: n.meta[BRANCH] for n in selects}
    around = ((node, list(sites_around(node, branches))) for node in graph.nodes)
    inside = ((node, [one for one in sites if one in branches]) for node, sites in around if sites)
    return [
        (node, kept, sites)
        for node, sites in inside
        if sites
        for kept in values_saved_for_backward(node)
    ]


def sites_that_save(keeping: list[fx.Node]) -> tuple[int, ...]:
    """The sites of the nodes, if all of them stand in arms: eager may save nothing then."""
    joins = [n.meta[BRANCH] for n in keeping[0].graph.nodes if BRANCH in n.meta]
    branches: dict[int, Branch] = {branch.site: branch for branch in joins}
    around = [list(sites_around(node, branches)) for node in keeping]
    return tuple(dict.fromkeys(chain(*around))) if all(around) else ()


def _reason(node: fx.Node, kept: fx.Node, later: list[fx.Node]) -> str:
    keys = set(memories([kept]))
    writer = next(n for n in later if not keys.isdisjoint(memories(written_nodes(n))))
    return (
        f"{op_name(node)} in an arm may save a tensor that {op_name(writer)} writes later: {FAILS}"
    )


def written_behind(graph: fx.Graph, output_graph: Any) -> Lost:
    """Sites whose arms may save what code behind the graph writes, with the reason of each."""
    saved = saved_in_arms(graph) if breaks_here(output_graph) else []
    if not saved:
        return {}
    keys = _memory_written(graph, output_graph)
    lost: Lost = {}
    for node, kept, sites in saved:
        if not keys.isdisjoint(memories([kept])):
            text = (
                f"{op_name(node)} in an arm may save a tensor that code behind a later graph "
                f"break writes: {FAILS}"
            )
            lost |= {site: (Reason.SIDE_EFFECT, text) for site in sites if site not in lost}
    return lost


def _memory_written(graph: fx.Graph, output_graph: Any) -> set[int]:
    translator = output_graph.root_tx
    storages: dict[int, set[int]] = {}
    for one in tensors_given(graph):
        storages.setdefault(storage_of(one.value) or 0, set()).update(memories([one.node]))

    def memory_of(value: torch.Tensor) -> frozenset[int]:
        return frozenset(storages.get(storage_of(value) or -1, ()))

    def pending(owner: Any, name: str) -> Held | None:
        found = pending_attribute(output_graph, owner, name)
        return None if found is None else held(found)

    values = Values(memory_of, pending)

    def held(found: Tracked) -> Held:
        if not found.nodes:
            return values.of(NULL if found.null else found.real)
        memory = frozenset(memories(found.nodes))
        if found.method:
            return values.attribute(Held(memory), found.method)
        return Held(memory, found.container, found.real)

    names = {name: held(tracked_local(translator, name)) for name in translator.symbolic_locals}
    stack = tuple(held(tracked(value)) for value in translator.stack)
    at = translator.indexof[translator.current_instruction]
    return memory_written(
        values, translator.f_code, translator.instructions, translator.f_globals, (stack, names), at
    )


def note_saved(graph: fx.Graph, frame: Frame, output_graph: Any) -> None:
    """Put on record, by names of the function, what a graph that ends in a break may save."""
    if not begins_with_gradients(output_graph) or not breaks_here(output_graph):
        return
    saved = {key for node in graph.nodes for key in memories(values_saved_for_backward(node))}
    if not saved:
        return
    translator, names = output_graph.root_tx, _names(graph, output_graph, saved)
    for name in translator.symbolic_locals:
        if not saved.isdisjoint(memories(tracked_local(translator, name).nodes)):
            names.add(f"L['{name}']")
    known = log.log_of(frame.compiler).saved_names
    known.setdefault(code_as_written(frame.code), set()).update(names)


def written_after_earlier_graphs(graph: fx.Graph, frame: Frame, output_graph: Any) -> Lost:
    """Sites whose arms write what earlier graphs of the function may have saved.

    A graph on a path not taken so far may be compiled later. A guard has the frame compiled again
    where such a graph saves what an arm writes.
    """
    code = code_as_written(frame.code)
    if code is frame.code or not begins_with_gradients(output_graph):
        return {}
    branches = [node for node in graph.nodes if BRANCH in node.meta]
    written = {node.meta[BRANCH].site: set(memories(written_back(node))) for node in branches}
    names = {site: _names(graph, output_graph, keys) for site, keys in written.items() if keys}
    known = log.log_of(frame.compiler).saved_names.setdefault(code, set())
    lost = [site for site, held in names.items() if not held.isdisjoint(known)]
    if names and not lost:
        guard = _NotSaved(frozenset().union(*names.values()), known)
        guard_on(output_graph.root_tx, "fusepass_saved", guard)
    return dict.fromkeys(lost, (Reason.SIDE_EFFECT, _TEXT))


def _names(graph: fx.Graph, output_graph: Any, keys: set[int]) -> set[str]:
    """Under which names a frame was given tensors that share memory."""
    given = tensors_given(graph)
    storages = {storage_of(one.value) for one in given if not keys.isdisjoint(memories([one.node]))}
    names = {str(one.source.name) for one in given if storage_of(one.value) in storages}
    local = held_storages(output_graph).items()
    return names | {name for name, storage in local if storage in storages}


@dataclass(frozen=True)
class _NotSaved:
    """The condition that no graph in front saves what arms write, asked before each call."""

    names: frozenset[str]
    saved: set[str]
    text = "no graph in front of a graph break saves what an arm writes"

    def holds(self) -> bool:
        return self.names.isdisjoint(self.saved)
