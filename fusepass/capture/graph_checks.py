"""Check a complete graph: code after a branch may forbid its capture.

Sites that cannot stay are given back to Dynamo, which starts the frame again without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.capture.autograd import (
    grad_in_one_arm,
    gradients,
    handed_on,
    none_gradients,
    select_identity,
)
from fusepass.capture.autograd.none_runtime import NoneGradients
from fusepass.capture.autograd.rematerialize import rematerialize_in_arms
from fusepass.capture.branch.nesting import room_for_values
from fusepass.capture.bytecode import try_blocks
from fusepass.capture.effects import event_legality
from fusepass.capture.effects.change_legality import unsafe_changes
from fusepass.capture.effects.lowering import lower_effects
from fusepass.capture.effects.runtime import Events
from fusepass.capture.error_recovery import restart_if_violated
from fusepass.capture.frame_state import Frame, Place, any_frame_of
from fusepass.capture.loop.same_tensor import lost_loops
from fusepass.capture.masks.mask_hooks import settle_masks
from fusepass.capture.mutation.aliased_inputs import settle_sharing
from fusepass.capture.mutation.saved_by_arms import (
    note_saved,
    written_after_earlier_graphs,
    written_after_saved,
    written_behind,
)
from fusepass.capture.nodes.predicate import copy_predicates, settle_held
from fusepass.capture.refusal import Refusal, fault
from fusepass.capture.restarts import (
    restart_leaving,
    restart_plain,
    restart_without,
    restart_without_saving,
)
from fusepass.capture.scalars.arm_scalars import lower_numbers
from fusepass.capture.scalars.deferred_items import reading, settle_items
from fusepass.errors import BranchRuleError
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report import log
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import fake_mode_of, has_specializations, real_input

Compiled = Callable[..., Any]


@dataclass(frozen=True)
class Traced:
    """A complete graph, settled and compiled for inputs of any size.

    ``mark_dynamic(x, 0, specialize_on=[…])`` has one graph compiled for any size, and again for a
    size of the list when such an input first comes. The trace is over then: nothing can be given
    back, and what capture put around the graph goes around each of its compiled forms.

    Attributes:
        gm: the graph.
        around: puts around a compiled form what the graph cannot hold.
        compiled: what runs it, for any size.
        record: what was decided about it.
    """

    gm: fx.GraphModule
    around: Callable[[Compiled], Compiled]
    compiled: Compiled
    record: log.GraphRecord


@dataclass(frozen=True)
class _Settled:
    """What is around a compiled graph.

    Attributes:
        late: results that are read as numbers.
        events: exceptions and lines.
        nones: leaves that have no gradient where their arm is not taken.
        choosing: puts around the graph what chooses results that an arm handed on.
    """

    late: frozenset[int] = frozenset()
    events: Events | None = None
    nones: NoneGradients | None = None
    choosing: Callable[[Compiled], Compiled] | None = None

    @property
    def reads_back(self) -> bool:
        """Whether anything is brought to the host behind the graph."""
        events = self.events is not None and self.events.reads_back
        detached = self.nones is not None and bool(self.nones.graded)
        return events or detached or self.choosing is not None

    def around(self, compiled: Compiled) -> Compiled:
        """A compiled form of the graph, with that around it; gradients are next to the graph."""
        if self.nones is not None:
            compiled = self.nones.around(compiled)
        if self.events is not None:
            compiled = self.events.around(compiled)
        if self.choosing is not None:
            compiled = self.choosing(compiled)
        return reading(compiled, self.late) if self.late else compiled


def settle_graph(output_graph: Any, gm: fx.GraphModule, compile_graph: Callable[[], Any]) -> Any:
    """Check a complete graph, compile it, and put around it what it cannot hold."""
    frame = any_frame_of(output_graph)
    if frame is None:
        return compile_graph()
    if frame.traced is not None and frame.traced.gm is gm:
        return _compiled_again(frame, frame.traced, compile_graph)
    as_written = settle_sharing(gm, frame, output_graph)
    with room_for_values(frame):
        settled = _Settled() if frame.plain else _settle_effects(output_graph, frame, gm)
    restart_if_violated(output_graph, frame)
    try:
        note_saved(gm.graph, frame, output_graph)
    except Exception as error:  # noqa: BLE001 - our error costs speed, never the program
        _restart_after(frame, error, {site.branch.site: site.place for site in frame.sites})
    try:
        with log.compiling(frame) as record:
            record.as_written = as_written
            record.reads_back = settled.reads_back
            compiled = compile_graph()
    except BranchRuleError as error:  # our error costs speed, never the program
        _restart_after(frame, error, {site.branch.site: site.place for site in frame.sites})
        raise
    restart_if_violated(output_graph, frame)  # rules, and Inductor, may have asked for more
    compiled = settled.around(compiled)
    if has_specializations(output_graph):
        frame.traced = Traced(gm, settled.around, compiled, record)
    return compiled


def _settle_effects(output_graph: Any, frame: Frame, gm: fx.GraphModule) -> _Settled:
    """Find what is read behind a complete graph, and the code to run around it.

    What cannot stay as it is goes back: the frame starts again.
    """
    _leave_unseen(frame, gm)
    restart_without(frame, unsafe_changes(gm.graph, frame))
    asked = settle_held(gm.graph)
    late = settle_items(gm, frame)
    late += settle_masks(gm, frame, output_graph)
    copy_predicates(gm.graph, fake_mode_of(gm))
    numbers = lower_numbers(gm.graph, fake_mode_of(gm), frame.new_branch)
    restart_without(frame, numbers, together=True)
    restart_without(frame, grad_in_one_arm.visible_choices(gm.graph))
    restart_without(frame, _undecided_gradients(frame, gm))
    restart_without_saving(frame, written_after_saved(gm.graph))
    _ask_around(output_graph, frame, gm)
    restart_without(frame, select_identity.hidden_grad_escapes(gm.graph))
    found = _handed_on(frame, gm)
    restart_without(frame, lost_loops(gm.graph, frame.options.allow_fresh_output))
    restart_without(frame, event_legality.unsafe_sinks(gm, output_graph))
    event_legality.leave_unsafe_lines(output_graph, frame, gm)
    try_blocks.ask_callers(output_graph, frame, gm.graph.nodes)
    choosing = _lower_handed_on(frame, found)
    also = [] if choosing is None else handed_on.tested_outputs(choosing)
    events = _lower_effects(frame, gm, asked, [*late, *also])
    nones = _hand_out_reached(output_graph, frame, gm)
    return _Settled(frozenset(late), events, nones, choosing)


def _handed_on(frame: Frame, gm: fx.GraphModule) -> handed_on.HandedOn:
    """Results that are what an arm hands on; where they cannot be chosen, the branch goes back."""
    aliases = select_identity.aliases_of_selected(gm.graph, frame.options.allow_fresh_output)
    found = handed_on.results_handed_on(gm, set(aliases.visible))
    kept = log.log_of(frame.compiler).kept.values()
    if any(one.reason_code is Reason.RAISES for one in kept):
        found.refuse_graded()  # a message behind this graph may show a gradient function
    lost = {aliases.visible[result]: select_identity.VISIBLE for result in found.refused}
    lost |= aliases.written
    restart_without(frame, {site: (Reason.ALIAS, text) for site, text in lost.items()})
    return found


def _ask_around(output_graph: Any, frame: Frame, gm: fx.GraphModule) -> None:
    """Give back branches because of what code in front saves, or code behind writes."""
    try:
        behind = written_behind(gm.graph, output_graph)
        earlier = written_after_earlier_graphs(gm.graph, frame, output_graph)
    except Exception as error:  # noqa: BLE001 - our error costs speed, never the program
        _restart_after(frame, error, {site.branch.site: site.place for site in frame.sites})
    else:
        restart_without_saving(frame, behind)
        restart_without(frame, earlier)


def _undecided_gradients(frame: Frame, gm: fx.GraphModule) -> dict[int, tuple[Reason, str]]:
    """Sites that decide whether something has a gradient, after what can be done about it."""
    allowed, fake_mode = frame.options.allow_zero_grad, fake_mode_of(gm)
    undecided = gradients.undecided_gradients(gm.graph, allowed)
    try:
        while undecided and rematerialize_in_arms(gm.graph, undecided, fake_mode):
            undecided = gradients.undecided_gradients(gm.graph, allowed)
    except Refusal as refusal:
        return dict.fromkeys(undecided, (refusal.code, refusal.text))
    except Exception as error:  # noqa: BLE001 - these sites go back, and the graph with them
        first = next(s.branch for s in frame.sites if s.branch.site in undecided)
        fault(error, first.file, first.line)
    return undecided


def _hand_out_reached(output_graph: Any, frame: Frame, gm: fx.GraphModule) -> NoneGradients | None:
    """Hand out which leaves have gradients, while there still is a way back."""
    if frame.options.allow_zero_grad:
        return None
    leaves = gradients.doubtful_leaves(gm.graph)
    if not leaves and not grad_in_one_arm.grad_choices(gm.graph):
        return None
    lost = gradients.undecided_gradients(gm.graph, allow_zero_grad=False)  # more is handed out now
    restart_without(frame, {s: why for s, why in lost.items() if why[0] is Reason.NONE_GRAD})
    restart_without(frame, grad_in_one_arm.visible_choices(gm.graph))
    try:
        return none_gradients.hand_out(output_graph, gm, leaves)
    except Exception as error:  # our error costs speed, never the program
        _restart_after(frame, error, {site.branch.site: site.place for site in frame.sites})
        raise


def _lower_handed_on(frame: Frame, found: handed_on.HandedOn) -> handed_on.Choosing | None:
    """The choices of results become code around the graph, while there still is a way back."""
    try:
        return found.lower()
    except Exception as error:
        _restart_after(frame, error, {site.branch.site: site.place for site in frame.sites})
        raise


def _lower_effects(
    frame: Frame, gm: fx.GraphModule, asked: list[int], read: list[int]
) -> Events | None:
    """Sinks and lines become code around the graph, while there still is a way back."""
    try:
        return lower_effects(gm, asked, read)
    except Exception as error:  # our error costs speed, never the program
        if frame.lines:
            lines = [("print", place) for place, _ in frame.lines]
            first = next(iter(frame.round_trips.values()))
            why = fault(error, first.file, first.line)
            restart_leaving(frame, dict.fromkeys(lines, why))
        sinks = {s.branch.site: s.place for s in frame.sites if s.branch.treatment == "sink"}
        _restart_after(frame, error, sinks or frame.empties)
        raise


def _restart_after(frame: Frame, error: Exception, lost: dict[int, Place]) -> None:
    """Start the frame again without some sites, with a warning; go on if there is none."""
    for place in [*lost.values()][:1]:
        restart_without(frame, dict.fromkeys(lost, fault(error, place.file, place.line)))


def _compiled_again(
    frame: Frame, traced: Traced, compile_graph: Callable[[], Compiled]
) -> Compiled:
    """The same graph, compiled for the sizes that torch knows now."""
    try:
        with log.compiling(frame, again=traced.record):
            return traced.around(compile_graph())
    except BranchRuleError as error:  # our error costs speed, never the program
        fault(error, traced.record.file, traced.record.line)
        return traced.compiled


def _leave_unseen(frame: Frame, gm: fx.GraphModule) -> None:
    """Start the frame again without capture if a tensor is in oneDNN's layout.

    Dynamo's fake tensor of it is strided: no decision made for that holds.
    """
    if not frame.captures:
        return
    layouts = (_real_layout(node) for node in gm.graph.nodes)
    for layout in filter(None, layouts):
        text = f"a tensor has the layout {layout}, of which tracing does not know"
        restart_plain(frame, Reason.UNTRACEABLE, text)


def _real_layout(node: fx.Node) -> str | None:
    """The layout that a tensor has, if tracing takes it for another one."""
    if op_name(node) == "to_mkldnn":
        return "torch._mkldnn"
    fake = tensor_value(node)
    if node.op not in ("placeholder", "get_attr") or fake is None:
        return None
    real = getattr(real_input(node), "layout", fake.layout)
    return None if real is fake.layout else str(real)
