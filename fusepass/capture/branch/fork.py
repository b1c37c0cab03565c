"""At a jump on a tensor: trace both arms up to their join, check them, and leave one select node.

The translator is driven with its own ``step``, so whatever Dynamo can trace an arm may contain.
Nothing is rolled back by hand except the translator's position and bindings between the arms: if
an arm cannot be kept, Dynamo's own restart discards the whole attempt (hooks.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusepass.capture.branch.join import join_arms
from fusepass.capture.branch.raise_arm import record_sink
from fusepass.capture.branch.short_circuit import join_tests, or_separately, short_circuit_at
from fusepass.capture.branch.snapshot import Arm, Bindings
from fusepass.capture.branch.trace_arm import trace_arm
from fusepass.capture.bytecode.control_flow import Region
from fusepass.capture.effects.message_trace import tag_as_message
from fusepass.capture.frame_state import BranchSite, Frame
from fusepass.capture.masks.unbacked_sizes import leave_sizes
from fusepass.capture.nodes.predicate import as_bool_scalar
from fusepass.capture.nodes.print_node import is_line
from fusepass.capture.refusal import ArmRaises, ArmStops, Refusal
from fusepass.capture.scalars.item_hooks import tested_from
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.hooks import jump_kind
from fusepass.torch_private.dynamo.print_calls import failures_unlogged
from fusepass.torch_private.dynamo.stack import realized


def _starts(translator: Any, target: int, keeps: bool, number: Any) -> tuple[Any, Any]:
    """Where the arms begin, that of the jump first, and with what on the stack."""
    *rest, tested = translator.stack
    if keeps and number is not None and not tested_from(translator, target, number):
        tested = number  # `r = number and tensor` leaves the number itself
    return (target, [*rest, tested] if keeps else rest), (translator.instruction_pointer, rest)


@dataclass(frozen=True)
class _BranchTrace:
    """A branch whose arms are to be traced.

    Attributes:
        translator: Dynamo's translator.
        frame: capture's state for this frame.
        site_id: number of the site.
        before: the translator's state at the branch.
        starts: of each arm, the instruction it starts at and the stack it starts with.
        predicate: the tracked 0-d bool tensor tested.
        join: the instruction at which the arms meet.
        where: file and line of the branch.
    """

    translator: Any
    frame: Frame
    site_id: int
    before: Bindings
    starts: dict[bool, tuple[int, list[Any]]]
    predicate: Any
    join: int
    where: tuple[str, int]

    def trace_both(self) -> BranchSite:
        """Trace both arms and join them; or go on in one, if the other turns out to raise."""
        translator, frame, before = self.translator, self.frame, self.before
        last = next(iter(reversed(translator.output.graph.nodes)), None)
        ungraded = frame.ungraded.now(translator.output.graph)
        arms: dict[bool, Arm] = {}
        try:
            for taken in (True, False):
                arm, start = (self.site_id, taken), self.starts[taken]
                arms[taken] = trace_arm(translator, frame, arm, before, start, self.join)
        except ArmRaises as refusal:
            return self._go_on_after(refusal, taken, last)
        except BaseException:
            before.restore()
            raise
        try:
            if ungraded is not None and ungraded.gained(translator.output.graph):
                text = "an arm writes something that requires grad into a tensor that does not"
                raise Refusal(Reason.NONE_GRAD, text)
            before.restore()
            return join_arms(
                translator, frame, self.site_id, before, arms, self.join, self.predicate, self.where
            )
        except BaseException:
            before.restore()
            raise

    def go_on(self, raising: bool) -> BranchSite:
        """Leave a sink for the arm that raises, and the translator at the start of the other."""
        translator, arm = self.translator, (*self.starts[raising], self.join)
        site = record_sink(
            translator,
            self.frame,
            self.site_id,
            self.before,
            arm,
            self.predicate,
            raising,
            self.where,
        )
        start, stack = self.starts[not raising]
        translator.stack = list(stack)
        translator.instruction_pointer = translator.start_point = start
        return site

    def _go_on_after(self, refusal: ArmRaises, raising: bool, last: Any) -> BranchSite:
        """Go on when an arm turns out to raise; what it left stands behind the node ``last``."""
        raised = not isinstance(refusal, ArmStops)
        stores = raised and self.translator.current_instruction.opname == "STORE_ATTR"
        self.before.restore()
        if stores:  # Dynamo asks what the attribute was
            text = "an arm binds an attribute that did not exist before it, or may not be bound"
            raise Refusal(Reason.SIDE_EFFECT, text) from None
        if not self._left_as_message(last):
            raise refusal
        try:
            return self.go_on(raising)
        except Refusal as fault:
            raise (refusal if isinstance(refusal, ArmStops) else fault) from None

    def _left_as_message(self, last: Any) -> bool:
        """Leave what an attempt recorded behind a node for a message, if it wrote nothing."""
        graph = self.translator.output.graph
        traced = tag_as_message(graph, last, self.site_id)
        for node in filter(is_line, traced):  # written again when the message is traced
            graph.erase_node(node)
        traced = [node for node in traced if not is_line(node)]
        if any(map(written_nodes, traced)):  # the attempt itself may have changed fake tensors
            return False
        leave_sizes(self.translator, traced)
        return True


@failures_unlogged()  # an arm that is not taken may fail for the tensors of a call
def fork(
    translator: Any,
    jump: Any,
    region: Region,
    frame: Frame,
    where: tuple[str, int],
    number: Any = None,
) -> BranchSite:
    """Capture the branch at ``jump``; on success the translator stands at the join.

    Args:
        translator: Dynamo's translator, the tensor tested on top of its stack.
        jump: the conditional jump.
        region: control-flow facts of the code object.
        frame: capture's state for this frame.
        where: file and line of the branch.
        number: the tracked Python number that the tensor tested says the truth of, if it is one.

    Raises:
        Refusal: the branch must stay; the translator is then as it was before the call, but for
            nodes recorded in a graph that Dynamo is going to discard.
    """
    site_id = frame.new_id()
    jumps_if, keeps = jump_kind(jump.opname)
    jump_index = translator.instruction_pointer - 1
    target = translator.indexof[jump.target]
    ends = {jumps_if: target, not jumps_if: translator.instruction_pointer}
    raising = [arm for arm, start in ends.items() if region.only_raises(start)]
    before = Bindings(translator, generators=bool(raising))
    join = region.join_of(jump_index)
    tested = translator.stack[-1]
    predicate = as_bool_scalar(translator, realized(tested))
    frame.predicates[site_id] = predicate
    jumped, passed = _starts(translator, target, keeps, number)
    starts = {jumps_if: jumped, not jumps_if: passed}
    if len(raising) == 2:
        raise Refusal(Reason.RAISES, "both arms only raise")
    chain = None if raising or keeps else short_circuit_at(translator, frame, region, jump_index)
    if chain is not None:
        with or_separately(frame, chain, before):
            return join_tests(translator, frame, chain, site_id, before, starts, predicate, where)
    branch = _BranchTrace(translator, frame, site_id, before, starts, predicate, join, where)
    return branch.go_on(raising[0]) if raising else branch.trace_both()
