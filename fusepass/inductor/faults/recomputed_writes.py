"""What a forward reads of an input that it writes is saved, never read again by the backward.

AOTAutograd's partitioner lets a backward compute again what is cheap, from inputs of the forward.
An input that the forward wrote holds other numbers then, so that ``self.ema.mul_(0.9)`` counts
twice in a gradient. If AOTAutograd writes it behind the forward graph, the backward raises instead.
Whatever reads such an input is marked: if the backward needs it, it is saved. What the program
itself computes again (activation checkpointing) stays as it is: eager also reads the input a second
time there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fusepass.graph.dataflow.reached import reached
from fusepass.inductor.faults.copies import input_of
from fusepass.inductor.faults.fault import Fault
from fusepass.report.decision import Decision, Station
from fusepass.torch_private.inductor.passes import inputs_written_behind

_FAULT = Fault(
    "recomputed_write",
    (197039,),
    "computes again in the backward what was read of an input that the forward writes",
)
_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_BACKWARD = ("is_backward", "must_be_in_backward")


def save_what_is_written(graph: fx.Graph) -> list[Decision]:
    """Mark such calls of a joint ATen graph to be saved; what was decided."""
    tangents = [node for node in graph.nodes if node.op == "placeholder" and _is_tangent(node)]
    written = _written_in_forward(graph) if tangents else set()
    if not written:
        return []
    backward = set(reached(tangents, lambda node: node.users))
    backward |= {node for node in graph.nodes if _is_of_backward(node)}
    found = False
    for node in reached(written, _views):
        for reader in node.users:
            if reader in backward or reader.op == "output" or _is_view(reader):
                continue
            if reader.meta.get("recompute") in _RECOMPUTED or _is_write(reader):
                continue
            reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            found |= any(one in backward for one in reached([reader], lambda node: node.users))
    return [_FAULT.decision("saved for the backward", Station.AFTER)] if found else []


def _written_in_forward(graph: fx.Graph) -> set[fx.Node]:
    """Inputs that are written when the backward begins."""
    writes = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    bases = (input_of(node.args[0]) for node in writes if not _is_of_backward(node))
    inside = {base for base in bases if base is not None}
    return inside.union(inputs_written_behind(graph))


def _is_tangent(node: fx.Node) -> bool:
    return "tangents" in str(node.target)


def _is_of_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") in _BACKWARD


def _is_write(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.copy_.default


def _views(node: fx.Node) -> Iterator[fx.Node]:
    return (user for user in node.users if _is_view(user))


def _is_view(node: fx.Node) -> bool:
    """Whether a call gives a view of its first operand, which holds no numbers of its own."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return _is_view(node.args[0])
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write
