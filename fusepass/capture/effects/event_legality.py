"""Check in the complete graph whether raises and lines may come after the graph.

Behind a sink the program runs on although it has raised. So nothing there may draw random numbers,
partial operations must have operands that keep them from failing (safe_operands.py), memory that
is visible outside must be such that its contents can be put back, and everything must be known.

What eager has printed stays printed when a later operation fails. A graph that fails hands out
nothing, so a line in front of an operation that may fail is kept where it stands, unless all it
shows is given and nothing in front of it may fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from fusepass.capture.effects.raise_operands import RaisePlan, is_input, plans
from fusepass.capture.effects.safe_operands import guard_for
from fusepass.capture.frame_state import Frame
from fusepass.capture.nodes import events
from fusepass.capture.restarts import Why, restart_leaving
from fusepass.capture.scalars.scalar_predicate import comes_from_items, is_late_number, is_read_back
from fusepass.graph.dataflow.effects import is_random, reshapes_its_operand, written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.memory_overlap import has_no_internal_overlap
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.failures import may_fail
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.raising import pending_changes, random_call_count
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.torch_private.fx.tensor_kinds import kind_of_fake

_LARGEST = 1 << 26  # bytes: a copy of more per call may cost more than the graph break
_DRAWS = frozenset("rand rand_like randint randint_like randn randn_like randperm".split())
_SURE_OF_NUMBERS = frozenset("add sub mul neg pos abs item sym_float sym_ite".split())


def left_out(node: fx.Node) -> bool:
    """Whether a node is only there for a message, or one of Dynamo's checks on such a node."""
    checked = reached([node], _checked)
    return any(events.is_message_only(one) or comes_from_items(one) for one in checked)


def _checked(node: fx.Node) -> list[fx.Node]:
    """What a check looks at; nothing for any other node."""
    value = node.meta.get("example_value")
    if (
        node.op != "call_function"
        or isinstance(value, torch.Tensor)
        or events.is_event(node)
        or written_nodes(node)  # x[i] = number has no value, and does something
        or op_name(node) == "getitem"
    ):
        return []
    return node.all_input_nodes


def input_owners(graph: fx.Graph) -> dict[int, list[fx.Node]]:
    """For each memory that is visible outside: the inputs that live in it."""
    owners: dict[int, list[fx.Node]] = {}
    for node in filter(is_input, graph.nodes):
        for key in memories([node]):
            owners.setdefault(key, []).append(node)
    return owners


def unsafe_sinks(gm: fx.GraphModule, output_graph: Any) -> dict[int, Why]:
    """Sites of sinks that must be taken back, with the reason of each."""
    lost: dict[int, Why] = {}
    open_sinks: list[fx.Node] = []
    owners = input_owners(gm.graph)
    saved: dict[fx.Node, int] = {}
    for node in gm.graph.nodes:
        if events.is_sink(node):
            open_sinks.append(node)
        elif open_sinks and not (events.is_line(node) or node.op == "output" or left_out(node)):
            why = _why_not_behind(node, open_sinks, owners) or _saves(node, owners, saved)
            for sink in open_sinks if why is not None else ():
                lost.setdefault(sink.meta[events.EVENT].site, why)  # type: ignore[arg-type]
    drawn = random_call_count(output_graph)
    for held in (sink.meta[events.EVENT] for sink in open_sinks):
        if held.random_calls != drawn:
            why = Reason.RANDOM_OP, "Python's random is drawn from afterwards"
            lost.setdefault(held.site, why)
    for plan in plans(gm.graph) if open_sinks else ():
        if events.is_sink(plan.event) and not plan.faithful:
            text = "the text of the exception shows a gradient function the graph does not have"
            lost.setdefault(plan.event.meta[events.EVENT].site, (Reason.RAISES, text))
    return lost


def _why_not_behind(
    node: fx.Node, sinks: list[fx.Node], owners: dict[int, list[fx.Node]]
) -> Why | None:
    """Why a call may not run after the raise of some sinks; None if it may."""
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
    for value in map(tensor_value, guard.operands(node)):
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
        for value in map(tensor_value, roots):
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
) -> Why | None:
    """Add up what must be saved in every call so that it could be put back."""
    for key in memories(written_nodes(node)):
        saved |= {root: _bytes(root) for root in owners.get(key, ())}
    if sum(saved.values()) > _LARGEST:
        return Reason.COST, "what is written after the raise is too large to be saved in every call"
    return None


def _bytes(node: fx.Node) -> int:
    value = tensor_value(node)
    return 0 if value is None else (size_hint(value.numel()) or 0) * value.element_size()


def leave_unsafe_lines(output_graph: Any, frame: Frame, gm: fx.GraphModule) -> None:
    """Start the frame again if there are lines that cannot be written after the graph."""
    lines = [node for node in gm.graph.nodes if events.is_line(node)]
    if not lines:
        return
    lost = {
        ("print", node.meta[events.EVENT].place): why
        for node, why in _unsafe_lines(gm.graph).items()
    }
    heard = [
        node.meta[events.EVENT] for node in lines if node.meta[events.EVENT].listener is not None
    ]
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
        if events.is_line(node):
            if given[node] and not events.is_rare(node):
                found.add(node)
        elif fails(node) is not None:
            break
    return found


def _unsafe_lines(graph: fx.Graph) -> dict[fx.Node, Why]:
    lost: dict[fx.Node, Why] = {}
    first = lines_first(graph)
    behind: str | None = None
    for node in reversed(graph.nodes):
        if events.is_line(node):
            if behind is not None and not (node in first and _is_heard(node)):
                lost[node] = Reason.PARTIAL_OP, f"an operation behind the line may fail: {behind}"
        else:
            behind = fails(node) or behind
    changes_default = any(op_name(node) == "set_default_dtype" for node in graph.nodes)
    history = WriteHistory(graph)
    results = graph.output_node().all_input_nodes
    bytes_kept = 0
    for plan in plans(graph):
        if events.is_sink(plan.event):
            continue
        bytes_kept += sum(_bytes(node) for node in plan.kept if node not in results)
        why = _why_not_after(plan, history)
        if why is None and changes_default and plan.event.meta[events.EVENT].looks:
            why = Reason.SIDE_EFFECT, "the default dtype changes, which the text depends on"
        if why is None and bytes_kept > _LARGEST:
            why = Reason.COST, "what lines show is too large to be kept until the graph has run"
        if why is not None:
            lost.setdefault(plan.event, why)
    return lost


def fails(node: fx.Node) -> str | None:
    """Why a call may fail, unless it leaves the graph; None if it may not."""
    if node.op == "output" or events.is_event(node) or left_out(node) or op_name(node) in _DRAWS:
        return None
    return may_fail(node)


def why_not_before(nodes: Iterable[fx.Node]) -> Why | None:
    """Why nothing may be changed in front of some calls; None if it may."""
    partial = next(filter(None, map(fails, nodes)), None)
    if partial is None:
        return None
    return Reason.PARTIAL_OP, f"an operation behind the change of an object may fail: {partial}"


def _is_heard(line: fx.Node) -> bool:
    """Whether what a line shows can still be read when an operation has failed."""
    values = map(tensor_value, events.nodes_of(line))
    return all(value is None or value.device.type == "cpu" for value in values)


def _why_not_after(plan: RaisePlan, history: WriteHistory) -> Why | None:
    """Why a line may not be written after the graph; None if it may."""
    line: events.Line = plan.event.meta[events.EVENT]
    operands = events.operands_of(plan.event)
    if not plan.faithful:
        return Reason.UNTRACEABLE, "the text shows a gradient function whose name is not known"
    read = {node: node.all_input_nodes for node in plan.again if is_read_back(node)}
    begun = [operands[i] for i in line.begun_before]
    read |= {node: [node] for node in begun if isinstance(node, fx.Node)}
    for node, sources in read.items():
        start = 0 if is_input(node) else history.moments[node] + 1
        end = history.moments[plan.event]
        if any(history.is_written(source, start, end) for source in sources):
            return Reason.SIDE_EFFECT, "what it shows was written after it had been read"
    for node in plan.again:
        if events.is_message_only(node) and may_fail(node) is not None:
            return Reason.PARTIAL_OP, f"what it shows may fail: {may_fail(node)}"
        if not _is_sure(node):
            return Reason.PARTIAL_OP, "arithmetic of numbers that it shows may fail"
    return None


def _is_sure(node: fx.Node) -> bool:
    """Whether what is computed again is no arithmetic of numbers that may fail."""
    if not is_late_number(node) or isinstance(node.meta.get("example_value"), torch.SymBool):
        return True
    name = op_name(node) or getattr(node.target, "__name__", "")
    divisor = node.args[1] if len(node.args) > 1 else None
    known = isinstance(divisor, (int, float)) and divisor != 0
    return name in _SURE_OF_NUMBERS or (name in ("div", "truediv") and known)
