"""Which memory a graph writes, in the graphs it calls, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import fx

from fusepass.graph.dataflow.effects import REPLACES_MEMORY, written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import higher_order_name, real_input


def memory_written(gm: fx.GraphModule) -> frozenset[int]:
    """Identities of what the calls of a graph write."""
    calls = (node for node in gm.graph.nodes if node.op.startswith("call_"))
    written = (operand for node in calls for operand in _written(node, gm))
    return frozenset(memories(written))


def writers_by_memory(nodes: Iterable[fx.Node]) -> dict[int, list[fx.Node]]:
    """The calls that write each memory, in order."""
    found: dict[int, list[fx.Node]] = {}
    for node in nodes:
        for key in memories(written_nodes(node)):
            found.setdefault(key, []).append(node)
    return found


class MemoryWrites:
    """The memories that a graph being traced has written so far."""

    def __init__(self) -> None:
        self._seen: fx.Node | None = None
        self._keys: set[int] = set()

    def contain(self, node: fx.Node) -> bool:
        """Whether the memory of a node may have been written."""
        last = seen = self._seen
        for one in reversed(node.graph.nodes):
            if one is seen:
                break
            last = one if last is seen else last
            self._keys.update(memories(written_nodes(one)))
        self._seen = last
        return not self._keys.isdisjoint(memories([node]))


def _written(node: fx.Node, gm: fx.GraphModule) -> list[fx.Node]:
    if higher_order_name(node.target) is None:
        return written_nodes(node)
    bodies = list(_bodies(node, gm))
    if bodies and not any(map(_writes, bodies)):
        return []
    return list(node.all_input_nodes)


def _bodies(node: fx.Node, gm: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """The graphs that a call of a higher-order operator is given."""
    for operand in node.all_input_nodes:
        if operand.op == "get_attr":
            held = _attribute(gm, str(operand.target))
            if isinstance(held, fx.GraphModule):
                yield held


def _attribute(gm: fx.GraphModule, path: str) -> object:
    held: object = gm
    for name in path.split("."):
        held = getattr(held, name, None)
    return held


def _writes(body: fx.GraphModule) -> bool:
    """Whether a graph may write what it is given, or what it finds outside."""
    given = [node for node in body.graph.nodes if node.op in ("placeholder", "get_attr")]
    keys = frozenset(memories(given))
    for node in body.graph.nodes:
        for operand in _written(node, body) if node.op.startswith("call_") else ():
            held = memories([operand])
            if not held or not keys.isdisjoint(held):
                return True
    return False


# --- Inputs that are given other memory: ``x.data = y`` -------------------------------------------


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
