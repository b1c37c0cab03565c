"""Keep a branch whose arm writes memory that an earlier graph of the function may have saved.

What arms write is written into the memory once, whichever arm is taken. Autograd counts that as a
write, and refuses the backward of whatever saved the memory before. Within one graph such a write
is refused at once (shadow_copies.py). An earlier graph of the same function is known by what it
left on record: the names under which the function holds what that graph may have saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.capture.frame_state import Frame
from fusepass.capture.mutation.aliased_inputs import written_back
from fusepass.capture.nodes.select_node import BRANCH
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.safety.saved_for_backward import values_saved_for_backward
from fusepass.report import log
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.frame_end import (
    begins_with_gradients,
    breaks_here,
    code_as_written,
    tracked_local,
)
from fusepass.torch_private.dynamo.frame_inputs import held_storages, storage_of, tensors_given
from fusepass.torch_private.dynamo.guards import guard_on

TEXT = (
    "an arm writes a tensor that a graph in front of a graph break may have saved for its "
    "backward: it would fail although eager did not take that arm"
)


def note_saved(graph: fx.Graph, frame: Frame, output_graph: Any) -> None:
    """Put on record what a graph that ends in a graph break may save, by the names of the function.

    Args:
        graph: the complete graph.
        frame: of capture.
        output_graph: Dynamo's.
    """
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


def written_after_earlier_graphs(
    graph: fx.Graph, frame: Frame, output_graph: Any
) -> dict[int, tuple[Reason, str]]:
    """Sites whose arms write what earlier graphs of the function may have saved.

    A graph on a path not taken so far may be compiled later. A guard has the frame compiled again
    where such a graph saves what an arm writes.

    Args:
        graph: the complete graph, selects still in it.
        frame: of capture.
        output_graph: Dynamo's.
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
    return dict.fromkeys(lost, (Reason.SIDE_EFFECT, TEXT))


def _names(graph: fx.Graph, output_graph: Any, keys: set[int]) -> set[str]:
    """Under which names a frame was given tensors that share memory."""
    given = tensors_given(graph)
    storages = {storage_of(one.value) for one in given if not keys.isdisjoint(memories([one.node]))}
    names = {str(one.source.name) for one in given if storage_of(one.value) in storages}
    local = held_storages(output_graph).items()
    return names | {name for name, storage in local if storage in storages}


@dataclass(frozen=True)
class _NotSaved:
    """That no graph in front saves what arms of this one write; asked before each call."""

    names: frozenset[str]
    saved: set[str]
    text = "no graph in front of a graph break saves what an arm writes"

    def holds(self) -> bool:
        return self.names.isdisjoint(self.saved)
