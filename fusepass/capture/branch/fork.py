"""At a jump on a tensor: trace both arms up to their join, check them, and leave one select node.

The translator is driven with its own ``step``, so whatever Dynamo can trace an arm may contain.
Nothing is rolled back by hand except the translator's position and bindings between the arms: if
an arm cannot be kept, Dynamo's own restart discards the whole attempt (hooks.py).
"""

from __future__ import annotations

from typing import Any

from fusepass.capture.branch.join import join_arms
from fusepass.capture.branch.nesting import room_for_values
from fusepass.capture.branch.raise_arm import record_sink, tag_as_message
from fusepass.capture.branch.short_circuit import join_tests, short_circuit_at
from fusepass.capture.branch.snapshot import Arm, Bindings, OpenBranch, last_node
from fusepass.capture.branch.trace_arm import trace_arm
from fusepass.capture.bytecode.control_flow import Region
from fusepass.capture.frame_state import BranchSite, Frame, Place
from fusepass.capture.masks.lowering import leave_sizes
from fusepass.capture.nodes.events import is_line
from fusepass.capture.nodes.predicate import as_bool_scalar
from fusepass.capture.refusal import ArmRaises, ArmStops, Refusal
from fusepass.capture.scalars.item_hooks import tested_from
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.hooks import jump_kind
from fusepass.torch_private.dynamo.phi import is_phi
from fusepass.torch_private.dynamo.print_calls import failures_unlogged
from fusepass.torch_private.dynamo.stack import realized


def _starts(translator: Any, target: int, keeps: bool, number: Any) -> tuple[Any, Any]:
    """Where the arms begin, that of the jump first, and with what on the stack."""
    *rest, tested = translator.stack
    known = keeps and number is not None
    if known and (is_phi(number) or not tested_from(translator, target, number)):
        tested = number  # `r = number and tensor` leaves the number itself
    return (target, [*rest, tested] if keeps else rest), (translator.instruction_pointer, rest)


def fork_operands(branch: OpenBranch) -> BranchSite:
    """Trace an instruction with the operands of either arm, up to the join."""
    branch.frame.predicates[branch.site] = branch.predicate
    with failures_unlogged():
        return trace_both(branch)


def trace_both(branch: OpenBranch) -> BranchSite:
    """Trace both arms and join them; or go on in one, if the other turns out to raise."""
    last = last_node(branch.graph)
    ungraded = branch.frame.ungraded.now(branch.graph)
    arms: dict[bool, Arm] = {}
    try:
        for taken in (True, False):
            arms[taken] = trace_arm(branch, taken)
        if ungraded is not None and ungraded.gained(branch.graph):
            text = "an arm writes something that requires grad into a tensor that does not"
            raise Refusal(Reason.NONE_GRAD, text)
        branch.before.restore()
        with room_for_values(branch.frame):
            return join_arms(branch, arms)
    except ArmRaises as refusal:
        return _go_on_after(branch, refusal, taken, last)
    except BaseException:
        branch.before.restore()
        raise


def _go_on(branch: OpenBranch, raising: bool) -> BranchSite:
    """Leave a sink for the arm that raises, and the translator at the start of the other."""
    site = record_sink(branch, raising)
    branch.enter(not raising)
    passed = tuple(branch.frame.arms), branch.predicate.as_proxy().node, not raising
    branch.frame.passed.append(passed)
    return site


def _go_on_after(branch: OpenBranch, refusal: ArmRaises, raising: bool, last: Any) -> BranchSite:
    """Go on when an arm turns out to raise; what it left stands behind the node ``last``."""
    raised = not isinstance(refusal, ArmStops)
    stores = raised and branch.translator.current_instruction.opname == "STORE_ATTR"
    branch.before.restore()
    if stores:  # Dynamo asks what the attribute was
        text = "an arm binds an attribute that did not exist before it, or may not be bound"
        raise Refusal(Reason.SIDE_EFFECT, text) from None
    if not _left_as_message(branch, last):
        raise refusal
    try:
        return _go_on(branch, raising)
    except Refusal as fault:
        raise (refusal if isinstance(refusal, ArmStops) else fault) from None


def _left_as_message(branch: OpenBranch, last: Any) -> bool:
    """Leave what an attempt recorded behind a node for a message, if it wrote nothing."""
    traced = tag_as_message(branch.graph, last, branch.site)
    for node in filter(is_line, traced):  # written again when the message is traced
        branch.graph.erase_node(node)
    traced = [node for node in traced if not is_line(node)]
    if any(map(written_nodes, traced)):  # the attempt itself may have changed fake tensors
        return False
    leave_sizes(branch.translator, traced)
    return True


@failures_unlogged()  # an arm that is not taken may fail for the tensors of a call
def fork(
    translator: Any,
    jump: Any,
    region: Region,
    frame: Frame,
    place: Place,
    number: Any = None,
    origin: int | None = None,
) -> BranchSite:
    """Capture the branch at ``jump``; on success the translator stands at the join.

    ``number`` is the tracked Python number that the tensor on top of the stack says the truth of,
    if it is one, or the value that is one of two; ``origin`` is the site that left that.

    Raises:
        Refusal: the branch must stay; the translator is then as it was before the call, but for
            nodes recorded in a graph that Dynamo is going to discard.
    """
    site = frame.new_id() if origin is None else frame.new_branch(origin)
    jumps_if, keeps = jump_kind(jump.opname)
    jump_index = translator.instruction_pointer - 1
    target = translator.indexof[jump.target]
    ends = {jumps_if: target, not jumps_if: translator.instruction_pointer}
    raising = [arm for arm, start in ends.items() if region.only_raises(start)]
    before = Bindings(translator, generators=bool(raising))
    predicate = as_bool_scalar(translator, realized(translator.stack[-1]))
    frame.predicates[site] = predicate
    jumped, passed = _starts(translator, target, keeps, number)
    starts = {jumps_if: jumped, not jumps_if: passed}
    if len(raising) == 2:
        raise Refusal(Reason.RAISES, "both arms only raise")
    join = region.join_of(jump_index)
    branch = OpenBranch(translator, frame, site, before, starts, predicate, join, place)
    if raising:
        return _go_on(branch, raising[0])
    chain = None if keeps else short_circuit_at(translator, frame, region, jump_index)
    return trace_both(branch) if chain is None else join_tests(branch, chain)
