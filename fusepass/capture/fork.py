"""At a jump on a tensor: trace both arms up to their join, check them, and leave one select node.

The translator is driven with its own ``step``, so whatever Dynamo can trace an arm may contain.
Nothing is rolled back by hand except the translator's position and bindings between the arms: if
an arm cannot be kept, Dynamo's own restart discards the whole attempt (hooks.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import fx

from fusepass import torch_private
from fusepass.capture.attributes import attribute_writes
from fusepass.capture.bindings import COPIED, Arm, Bindings, modes, mutations
from fusepass.capture.data_sizes import forget_counts, leave_sizes
from fusepass.capture.frame import Frame, Site
from fusepass.capture.join import join_arms
from fusepass.capture.predicate import as_bool_scalar
from fusepass.capture.raising_arm import record_sink, tag_as_message
from fusepass.capture.refusal import ArmRaises, ArmStops, Refusal
from fusepass.capture.region import EXIT, RETURNS, Region
from fusepass.capture.select import ARM
from fusepass.capture.sink import is_sink, only_for_message
from fusepass.capture.ungraded import requires_grad
from fusepass.graph.effects import written_nodes
from fusepass.report.decision import Reason


def fork(translator: Any, jump: Any, region: Region, frame: Frame, where: tuple[str, int]) -> Site:
    """Capture the branch at ``jump``; on success the translator stands at the join.

    Args:
        translator: Dynamo's translator, the tensor tested on top of its stack.
        jump: the conditional jump.
        region: control-flow facts of the code object.
        frame: capture's state for this frame.
        where: file and line of the branch.

    Raises:
        Refusal: the branch must stay; the translator is then as it was before the call, but for
            nodes recorded in a graph that Dynamo is going to discard.
    """
    site_id = frame.new_id()
    jumps_if, keeps = torch_private.jump_kind(jump.opname)
    jump_index = translator.instruction_pointer - 1
    target = translator.indexof[jump.target]
    ends = {jumps_if: target, not jumps_if: translator.instruction_pointer}
    raising = [arm for arm, start in ends.items() if region.only_raises(start)]
    before = Bindings(translator, generators=bool(raising))
    join = region.join_of(jump_index)
    tested = translator.stack[-1]
    predicate = as_bool_scalar(translator, torch_private.realized(tested))
    frame.predicates[site_id] = predicate
    rest = translator.stack[:-1]
    jumped = (target, [*rest, tested] if keeps else rest)
    passed = (translator.instruction_pointer, rest)
    starts = {jumps_if: jumped, not jumps_if: passed}
    if len(raising) == 2:
        raise Refusal(Reason.RAISES, "both arms only raise")
    if raising:
        return _go_on(
            translator, frame, site_id, before, starts, predicate, raising[0], join, where
        )
    last = next(iter(reversed(translator.output.graph.nodes)), None)
    ungraded = frame.ungraded.now(translator.output.graph)
    arms: dict[bool, Arm] = {}
    try:
        for taken in (True, False):
            before.restore()
            start, stack = starts[taken]
            with _inside_arm(translator, frame, (site_id, taken)):
                arms[taken] = _trace(translator, before, start, list(stack), join)
                for node in arms[taken].nodes:
                    node.meta.setdefault(ARM, (site_id, taken))
    except ArmRaises as refusal:
        raised = not isinstance(refusal, ArmStops)
        stores = raised and translator.current_instruction.opname == "STORE_ATTR"
        before.restore()
        if stores:  # Dynamo asks what the attribute was
            text = "an arm binds an attribute that did not exist before it, or may not be bound"
            raise Refusal(Reason.SIDE_EFFECT, text) from None
        traced = tag_as_message(translator.output.graph, last, site_id)
        if any(map(written_nodes, traced)):  # the attempt itself may have changed fake tensors
            raise
        leave_sizes(translator, traced)
        try:
            return _go_on(translator, frame, site_id, before, starts, predicate, taken, join, where)
        except Refusal as fault:
            raise (refusal if isinstance(refusal, ArmStops) else fault) from None
    except BaseException:
        before.restore()
        raise
    try:
        if any(map(requires_grad, ungraded)):
            text = "an arm writes something that requires grad into a tensor that does not"
            raise Refusal(Reason.NONE_GRAD, text)
        before.restore()
        return join_arms(translator, frame, site_id, before, arms, join, predicate, where)
    except BaseException:
        before.restore()
        raise


def _go_on(
    translator: Any,
    frame: Frame,
    site_id: int,
    before: Bindings,
    starts: dict[bool, tuple[int, list[Any]]],
    predicate: Any,
    raising: bool,
    join: int,
    where: tuple[str, int],
) -> Site:
    """Leave a sink for the arm that raises, and the translator at the start of the other one."""
    arm = (*starts[raising], join)
    site = record_sink(translator, frame, site_id, before, arm, predicate, raising, where)
    start, stack = starts[not raising]
    translator.stack = list(stack)
    translator.instruction_pointer = translator.start_point = start
    return site


@contextlib.contextmanager
def _inside_arm(translator: Any, frame: Frame, arm: tuple[int, bool]) -> Iterator[None]:
    """No partial graph may be compiled inside an arm, and nothing made outside may be written."""
    shadowed = translator.__dict__.get("should_compile_partial_graph")
    translator.should_compile_partial_graph = lambda: False
    translator.exception_handler = _refuse_handling  # a handler may lie beyond the join
    translator.current_speculation = None
    frame.arms.append(arm)
    try:
        with torch_private.new_scope():
            yield
    finally:
        frame.arms.pop()
        if shadowed is None:
            del translator.should_compile_partial_graph
            del translator.exception_handler
        else:
            translator.should_compile_partial_graph = shadowed


def _refuse_handling(error: Any) -> None:
    raise ArmRaises(Reason.RAISES, f"an arm raises ({type(error).__name__})")


def _trace(translator: Any, before: Bindings, start: int, stack: list[Any], join: int) -> Arm:
    graph = translator.output.graph
    last = next(iter(reversed(graph.nodes)), None)
    calls_before = len(graph.nodes) - torch_private.input_count(translator)
    translator.stack = stack
    translator.instruction_pointer = translator.start_point = start
    iterators = [held for held, _ in before.iterators]
    with attribute_writes(translator, iterators) as writes, torch_private.data_sizes(translator):
        _run_to(translator, join)
    writes.collect()
    if modes() != before.modes:
        raise Refusal(
            Reason.SIDE_EFFECT, "an arm leaves grad mode, autocast or inference mode changed"
        )
    if mutations(translator) != before.mutations:
        raise Refusal(
            Reason.SIDE_EFFECT, "an arm writes an attribute or variable that existed before it"
        )
    bindings = {name: getattr(translator, name) for name in COPIED}
    nodes = _recorded_since(graph, last)
    if len(graph.nodes) - torch_private.input_count(translator) != calls_before + len(nodes):
        raise Refusal(
            Reason.SIDE_EFFECT, "an arm changes what was recorded before it (a hook on a tensor)"
        )
    nodes = [n for n in nodes if not is_sink(n) and not only_for_message(n)]
    forget_counts(nodes)
    held = torch_private.iterator_states([iterator for iterator, _ in before.iterators])
    return Arm(bindings, translator.instruction_pointer, nodes, held, writes)


def _run_to(translator: Any, join: int) -> None:
    try:
        while True:
            index = translator.instruction_pointer
            if index == join:
                return
            if join == EXIT and translator.instructions[index].opname in RETURNS:
                return
            if not translator.step():
                raise Refusal(
                    Reason.UNTRACEABLE, "an arm leaves the frame in a way that cannot be joined"
                )
    except torch_private.restart_errors():
        raise
    except torch_private.observed_exceptions() as error:
        raise ArmRaises(Reason.RAISES, f"an arm raises ({type(error).__name__})") from error
    except torch_private.unsupported_errors() as error:
        raise _refusal_for(error) from error


def _refusal_for(error: BaseException) -> Refusal:
    text = str(getattr(error, "gb_type", None) or error).strip().split("\n")[0]
    message = str(error)
    if "side effect" in message.lower() or "from outside the scope" in message:
        return Refusal(
            Reason.SIDE_EFFECT, f"an arm writes something that existed before it ({text})"
        )
    return ArmStops(Reason.UNTRACEABLE, f"an arm cannot be traced: {text}")


def _recorded_since(graph: fx.Graph, last: fx.Node | None) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is last:
            break
        if node.op != "placeholder":
            nodes.append(node)
    return nodes[::-1]
