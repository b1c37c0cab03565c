"""Check in the complete graph whether a print may run after the graph.

What eager has printed stays printed when a later operation fails. A graph that fails hands out
nothing, so a line in front of an operation that may fail is kept where it stands, unless all it
shows is given and nothing in front of it may fail.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.capture.effects.raise_legality import left_out
from fusepass.capture.effects.raise_operands import (
    RaisePlan,
    is_input,
    is_rare,
    nodes_of,
    operands_of,
    plans,
)
from fusepass.capture.frame_state import Frame
from fusepass.capture.nodes.print_node import LINE, Line, is_line
from fusepass.capture.nodes.raise_node import is_message_only, is_sink
from fusepass.capture.restarts import Why, restart_leaving
from fusepass.capture.scalars.scalar_predicate import is_late_number, is_read_back
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.failures import may_fail
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.raising import pending_changes
from fusepass.torch_private.fx.graphs import size_hint

_MAX_KEPT = 1 << 26  # bytes: more would live until the graph has run only to be shown
_DRAWS = frozenset("rand rand_like randint randint_like randn randn_like randperm".split())
_SURE_OF_NUMBERS = frozenset("add sub mul neg pos abs item sym_float sym_ite".split())


def leave_unsafe(output_graph: Any, frame: Frame, gm: fx.GraphModule) -> None:
    """Start the frame again if there are lines that cannot be written after the graph."""
    if not any(map(is_line, gm.graph.nodes)):
        return
    lost = {("print", line.meta[LINE].place): why for line, why in _unsafe(gm.graph).items()}
    heard = [node.meta[LINE] for node in gm.graph.nodes if is_line(node)]
    heard = [line for line in heard if line.listener is not None]
    pending = pending_changes(output_graph.root_tx) if heard else None
    for line in heard if pending is not None else ():  # Dynamo writes it, whatever was done to it
        text = f"{line.listener} may have a part in {pending}, which is changed after the graph"
        lost.setdefault(("print", line.place), (Reason.SIDE_EFFECT, text))
    if lost:
        restart_leaving(frame, lost)


def lines_first(graph: fx.Graph) -> set[fx.Node]:
    """Lines in front of all that may fail, of what is given: written also when the graph fails."""
    found: set[fx.Node] = set()
    given = {plan.event: not plan.again and not plan.kept for plan in plans(graph)}
    for node in graph.nodes:
        if is_line(node):
            if given[node] and not is_rare(node):
                found.add(node)
        elif _fails(node) is not None:
            break
    return found


def _unsafe(graph: fx.Graph) -> dict[fx.Node, Why]:
    lost: dict[fx.Node, Why] = {}
    first = lines_first(graph)
    behind: str | None = None
    for node in reversed(graph.nodes):
        if is_line(node):
            if behind is not None and not (node in first and _is_heard(node)):
                lost[node] = Reason.PARTIAL_OP, f"an operation behind the line may fail: {behind}"
        else:
            behind = _fails(node) or behind
    changes_default = any(op_name(node) == "set_default_dtype" for node in graph.nodes)
    order = {node: position for position, node in enumerate(graph.nodes)}
    writes = [node for node in graph.nodes if written_nodes(node)]
    bytes_kept = 0
    for plan in plans(graph):
        if is_sink(plan.event):
            continue
        bytes_kept += sum(map(_size, plan.kept))
        why = _why_not(plan, order, writes)
        if why is None and changes_default and plan.event.meta[LINE].looks:
            why = Reason.SIDE_EFFECT, "the default dtype changes, which the text depends on"
        if why is None and bytes_kept > _MAX_KEPT:
            why = Reason.COST, "what lines show is too large to be kept until the graph has run"
        if why is not None:
            lost.setdefault(plan.event, why)
    return lost


def _fails(node: fx.Node) -> str | None:
    if node.op == "output" or is_sink(node) or is_line(node) or left_out(node):
        return None
    if op_name(node) in _DRAWS:
        return None
    return may_fail(node)


def _is_heard(line: fx.Node) -> bool:
    """Whether what a line shows can still be read when an operation has failed."""
    values = map(tensor_value, nodes_of(line))
    return all(value is None or value.device.type == "cpu" for value in values)


def _size(node: fx.Node) -> int:
    value = tensor_value(node)
    if value is None or node in node.graph.output_node().all_input_nodes:
        return 0
    return (size_hint(value.numel()) or 0) * value.element_size()


def _why_not(plan: RaisePlan, order: dict[fx.Node, int], writes: list[fx.Node]) -> Why | None:
    line: Line = plan.event.meta[LINE]
    operands = operands_of(plan.event)
    if not plan.faithful:
        text = "the text shows a gradient function whose name is not known"
        return Reason.UNTRACEABLE, text
    read = {node: node.all_input_nodes for node in plan.again if is_read_back(node)}
    begun = [operands[i] for i in line.begun_before]
    read |= {node: [node] for node in begun if isinstance(node, fx.Node)}
    for node, sources in read.items():
        start = -1 if is_input(node) else order[node]
        if _written_between(sources, start, order[plan.event], order, writes):
            return Reason.SIDE_EFFECT, "what it shows was written after it had been read"
    for node in plan.again:
        if is_message_only(node) and may_fail(node) is not None:
            return Reason.PARTIAL_OP, f"what it shows may fail: {may_fail(node)}"
        if not _is_sure(node):
            return Reason.PARTIAL_OP, "arithmetic of numbers that it shows may fail"
    return None


def _written_between(
    nodes: list[fx.Node], start: int, end: int, order: dict[fx.Node, int], writes: list[fx.Node]
) -> bool:
    keys = set(memories(nodes))
    between = (node for node in writes if start < order[node] < end)
    return any(not keys.isdisjoint(memories(written_nodes(node))) for node in between)


def _is_sure(node: fx.Node) -> bool:
    """Whether what is computed again is no arithmetic of numbers that may fail."""
    if not is_late_number(node) or isinstance(node.meta.get("example_value"), torch.SymBool):
        return True
    name = op_name(node) or getattr(node.target, "__name__", "")
    divisor = node.args[1] if len(node.args) > 1 else None
    known = isinstance(divisor, (int, float)) and divisor != 0
    return name in _SURE_OF_NUMBERS or (name in ("div", "truediv") and known)
