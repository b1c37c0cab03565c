"""Check in the complete graph whether calls after a raise can be made harmless.

Behind a sink the program runs on although it has raised. So nothing there may draw random numbers,
partial operations must have operands that keep them from failing (safe_operands.py), memory that
is visible outside must be such that its contents can be put back, and everything must be known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.capture.effects.raise_operands import is_input, plans
from fusepass.capture.effects.safe_operands import guard_for
from fusepass.capture.nodes.print_node import is_line
from fusepass.capture.nodes.raise_node import SINK, Sink, is_message_only, is_sink
from fusepass.capture.scalars.scalar_predicate import comes_from_items
from fusepass.graph.dataflow.effects import is_random, reshapes_its_operand, written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.memory_overlap import has_no_internal_overlap
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.failures import may_fail
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.raising import random_call_count
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.torch_private.fx.tensor_kinds import kind_of_fake

_MAX_SAVED = 1 << 26  # bytes: a copy of more per call may cost more than the graph break
Lost = dict[int, tuple[Reason, str]]


def unsafe_sinks(gm: fx.GraphModule, output_graph: Any) -> Lost:
    """Sites of sinks that must be taken back, with the reason of each."""
    graph = gm.graph
    lost: Lost = {}
    open_sinks: list[fx.Node] = []
    owners = input_owners(graph)
    saved: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if is_line(node):
            continue
        if is_sink(node):
            open_sinks.append(node)
        elif open_sinks and node.op != "output" and not left_out(node):
            why = _why_not(node, open_sinks, owners) or _saves(node, owners, saved)
            for sink in open_sinks if why is not None else ():
                lost.setdefault(sink.meta[SINK].site, why)  # type: ignore[arg-type]
    drawn = random_call_count(output_graph)
    for sink in open_sinks:
        held: Sink = sink.meta[SINK]
        if held.random_calls != drawn:
            lost.setdefault(
                held.site, (Reason.RANDOM_OP, "Python's random is drawn from afterwards")
            )
    for plan in plans(graph) if open_sinks else ():
        if is_sink(plan.event) and not plan.faithful:
            text = "the text of the exception shows a gradient function the graph does not have"
            lost.setdefault(plan.event.meta[SINK].site, (Reason.RAISES, text))
    return lost


def left_out(node: fx.Node) -> bool:
    """Whether a node is only there for a message, or one of Dynamo's checks on such a node."""
    checked = reached([node], _checked)
    return any(is_message_only(one) or comes_from_items(one) for one in checked)


def _checked(node: fx.Node) -> set[fx.Node]:
    """What a check looks at; nothing for any other node."""
    value = node.meta.get("example_value")
    if (
        node.op != "call_function"
        or isinstance(value, torch.Tensor)
        or is_sink(node)
        or is_line(node)
        or written_nodes(node)  # x[i] = number has no value, and does something
    ):
        return set()
    return set() if op_name(node) == "getitem" else set(node.all_input_nodes)


def input_owners(graph: fx.Graph) -> dict[int, list[fx.Node]]:
    """For each memory that is visible outside: the inputs that live in it."""
    owners: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if is_input(node):
            for key in memories([node]):
                owners.setdefault(key, []).append(node)
    return owners


def _why_not(
    node: fx.Node, sinks: list[fx.Node], owners: dict[int, list[fx.Node]]
) -> tuple[Reason, str] | None:
    name = op_name(node) or getattr(node.target, "__name__", str(node.target))
    if is_random(node):
        return Reason.RANDOM_OP, f"random numbers are drawn after the raise ({name})"
    why = _irreversible(node, owners)
    if why is not None:
        return Reason.SIDE_EFFECT, f"after the raise, {name} writes {why}"
    partial = may_fail(node)
    if partial is None:
        return None
    guard = guard_for(node)
    if guard is None:
        return Reason.PARTIAL_OP, f"after the raise, an operation may fail: {partial}"
    tests = [tensor_value(sink.args[0]) for sink in sinks]
    for operand in guard.operands(node):
        value = tensor_value(operand)
        if any(test is None or value is None or test.device != value.device for test in tests):
            return Reason.DEVICE_MISMATCH, f"{name} is on another device than what is tested"
    return None


def _irreversible(node: fx.Node, owners: dict[int, list[fx.Node]]) -> str | None:
    """What a call writes whose contents could not be put back, or None."""
    for written in written_nodes(node):
        keys = memories([written])
        if not keys:
            return "something unknown"
        roots = [root for key in keys for root in owners.get(key, ())]
        if roots and reshapes_its_operand(node):
            return "the shape of an input"
        for root in roots:
            value = tensor_value(root)
            if value is None:
                return "something unknown"
            kind = kind_of_fake(value)
            if kind is not None:
                return f"a tensor that {kind}"
            if value.requires_grad:
                return "a tensor that requires grad"
            if not has_no_internal_overlap(value):
                return "a tensor whose elements share places"
    return None


def _saves(
    node: fx.Node, owners: dict[int, list[fx.Node]], saved: dict[fx.Node, int]
) -> tuple[Reason, str] | None:
    """Add up what must be saved in every call so that it could be put back."""
    for key in memories(written_nodes(node)):
        for root in owners.get(key, ()):
            value: Any = tensor_value(root)
            size = value.numel() * value.element_size()
            saved[root] = size_hint(size) or 0
    if sum(saved.values()) > _MAX_SAVED:
        return Reason.COST, "what is written after the raise is too large to be saved in every call"
    return None
