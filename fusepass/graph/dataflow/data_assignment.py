"""Graphs that give an input other memory (``x.data = y``) in a way AOTAutograd does not follow."""

from __future__ import annotations

import torch
from torch import fx

from fusepass.graph.dataflow.effects import REPLACES_MEMORY, written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import real_input


def replaced_memory_reason(graph: fx.Graph) -> str | None:
    """Why a graph has to be run as it is written, or None.

    AOTAutograd replaces the memory of an input when all else is done, and fails where the old or
    the new memory is written, too. Inductor takes the input to have had its new shape all along.
    """
    replacing = [node for node in graph.nodes if _replaces(node)]
    keys = frozenset(memories(node.args[0] for node in replacing if node.args))
    inputs = [n for n in graph.find_nodes(op="placeholder") if not keys.isdisjoint(memories([n]))]
    if not inputs:
        return None
    if any(map(_changes_metadata, inputs)):
        return "it gives an input memory of another shape"
    # What was written in the old memory cannot be told from what is new: the input is not there.
    if any(op_name(node) and written_nodes(node) for node in graph.nodes if not _replaces(node)):
        return "it gives an input other memory, and writes in place"
    return None


def _changes_metadata(node: fx.Node) -> bool:
    """Whether an input is left with sizes, strides or a dtype that it did not come with."""
    came, left = real_input(node), tensor_value(node)
    if not isinstance(came, torch.Tensor) or left is None:
        return False
    if came.dtype != left.dtype or came.dim() != left.dim():
        return True
    return any(
        isinstance(now, int) and now != before
        for before, now in zip(
            (*came.shape, *came.stride(), came.storage_offset()),
            (*left.shape, *left.stride(), left.storage_offset()),
            strict=True,
        )
    )


def _replaces(node: fx.Node) -> bool:
    return node.target is torch.Tensor.set_ or op_name(node) in REPLACES_MEMORY
