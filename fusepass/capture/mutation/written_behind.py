"""Keep a branch whose arm saves for a backward what code after the graph writes.

Behind a graph break the rest of the function is other graphs, or eager mode. What that writes can
only be read off the bytecode, and of calls in it only where the function called is known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.capture.bytecode.held_values import NULL, Held, Values
from fusepass.capture.bytecode.writes_behind import memory_written
from fusepass.capture.mutation.saved_by_arms import FAILS, saved_in_arms
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.ops.op_names import op_name
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.frame_end import (
    Tracked,
    breaks_here,
    pending_attribute,
    tracked,
    tracked_local,
)
from fusepass.torch_private.dynamo.frame_inputs import storage_of, tensors_given


def written_behind(graph: fx.Graph, output_graph: Any) -> dict[int, tuple[Reason, str]]:
    """Sites whose arms may save what code behind the graph writes, with the reason of each.

    Args:
        graph: the complete graph of a frame, selects still in it.
        output_graph: Dynamo's.
    """
    saved = saved_in_arms(graph) if breaks_here(output_graph) else []
    if not saved:
        return {}
    keys = _memory_written(graph, output_graph)
    lost: dict[int, tuple[Reason, str]] = {}
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
