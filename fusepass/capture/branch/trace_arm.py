"""Trace one arm of a branch, from the jump to the join.

Inside, the translator compiles no partial graph and handles no exception: what would need either
gives the branch back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import fx

from fusepass.capture.branch.attribute_merge import attribute_writes
from fusepass.capture.branch.snapshot import (
    COPIED,
    Arm,
    Bindings,
    check_with_blocks_left,
    modes,
    pending_mutations,
)
from fusepass.capture.bytecode.control_flow import EXIT
from fusepass.capture.bytecode.instructions import RETURNS
from fusepass.capture.frame_state import Frame
from fusepass.capture.masks.unbacked_sizes import forget_counts
from fusepass.capture.nodes.print_node import is_line
from fusepass.capture.nodes.raise_node import is_message_only, is_sink
from fusepass.capture.nodes.select_node import ARM
from fusepass.capture.refusal import ArmRaises, ArmStops, Refusal
from fusepass.graph.safety.tensor_kinds import special_or_transformed_reason
from fusepass.report.decision import Reason
from fusepass.report.user_code import is_torchs_file
from fusepass.torch_private.dynamo.compile_state import input_count
from fusepass.torch_private.dynamo.containers import iterator_states
from fusepass.torch_private.dynamo.errors.stop_reasons import python_error, why_stopped
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import asked_symbols, data_sizes
from fusepass.torch_private.dynamo.side_effects import what_was_done
from fusepass.torch_private.dynamo.stack import (
    new_scope,
    observed_exceptions,
    restart_errors,
    unsupported_errors,
)


def trace_arm(
    translator: Any,
    frame: Frame,
    arm: tuple[int, bool],
    before: Bindings,
    start: tuple[int, list[Any]],
    join: int,
    at_end: Callable[[], None] = lambda: None,
) -> Arm:
    """Trace an arm; the translator is left where it ends.

    Args:
        translator: Dynamo's translator.
        frame: capture's state for this frame.
        arm: site id, and which arm.
        before: the bindings the arm starts from.
        start: instruction index and stack it starts with.
        join: instruction index it ends before, or
            :data:`~fusepass.capture.bytecode.control_flow.EXIT`.
        at_end: called at the join, while what is recorded still belongs to the arm.

    Raises:
        Refusal: it cannot be traced, or does what an arm must not.
        ArmRaises: it raises.
    """
    before.restore()
    index, stack = start
    with _arm_scope(translator, frame, arm):
        traced = _trace(translator, before, index, list(stack), join, at_end)
        for node in traced.nodes:
            node.meta.setdefault(ARM, arm)
    return traced


@contextlib.contextmanager
def _arm_scope(translator: Any, frame: Frame, arm: tuple[int, bool]) -> Iterator[None]:
    """No partial graph may be compiled inside an arm, and nothing made outside may be written."""
    shadowed = translator.__dict__.get("should_compile_partial_graph")
    translator.should_compile_partial_graph = lambda: False
    translator.exception_handler = _refuse_handling  # a handler may lie beyond the join
    translator.current_speculation = None
    frame.arms.append(arm)
    try:
        with new_scope():
            yield
    finally:
        frame.arms.pop()
        if shadowed is None:
            del translator.should_compile_partial_graph
            del translator.exception_handler
        else:
            translator.should_compile_partial_graph = shadowed


def _refuse_handling(error: Any) -> None:
    raise ArmRaises(Reason.RAISES, f"an arm raises {python_error(error)}")


def _trace(
    translator: Any,
    before: Bindings,
    start: int,
    stack: list[Any],
    join: int,
    at_end: Callable[[], None],
) -> Arm:
    graph = translator.output.graph
    last = next(iter(reversed(graph.nodes)), None)
    calls_before = len(graph.nodes) - input_count(translator)
    translator.stack = stack
    translator.instruction_pointer = translator.start_point = start
    iterators = [held for held, _ in before.iterators]
    with attribute_writes(translator, iterators) as writes, data_sizes(translator):
        _trace_until(translator, join)
        check_with_blocks_left(translator, before)
        at_end()
    writes.collect()
    if modes() != before.modes:
        raise Refusal(
            Reason.SIDE_EFFECT, "an arm leaves grad mode, autocast or inference mode changed"
        )
    if pending_mutations(translator) != before.mutations:
        raise Refusal(
            Reason.SIDE_EFFECT, "an arm writes an attribute or variable that existed before it"
        )
    bindings = {name: getattr(translator, name) for name in COPIED}
    nodes = _recorded_since(graph, last)
    if len(graph.nodes) - input_count(translator) != calls_before + len(nodes):
        raise Refusal(
            Reason.SIDE_EFFECT, "an arm changes what was recorded before it (a hook on a tensor)"
        )
    nodes = [n for n in nodes if not (is_sink(n) or is_line(n) or is_message_only(n))]
    for why in filter(None, map(special_or_transformed_reason, nodes)):
        raise Refusal(Reason.UNTRACEABLE, f"in an arm, {why}")
    forget_counts(nodes)
    held = iterator_states([iterator for iterator, _ in before.iterators])
    return Arm(bindings, translator.instruction_pointer, nodes, held, writes)


def _trace_until(translator: Any, join: int) -> None:
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
    except restart_errors():
        raise
    except observed_exceptions() as error:
        raise ArmRaises(Reason.RAISES, f"an arm raises {python_error(error)}") from error
    except unsupported_errors() as error:
        raise _refusal_for(error) from error


def _refusal_for(error: BaseException) -> Refusal:
    done = what_was_done(error)
    if done is not None:
        return Refusal(Reason.SIDE_EFFECT, f"an arm {done}")
    if asked_symbols(error):
        text = "Python asks for the value of a number that is not read"
    else:
        text = why_stopped(error)
    frames = reversed(getattr(error, "real_stack", None) or ())
    own = next((one for one in frames if not is_torchs_file(one.filename)), None)
    place = f" ({Path(own.filename).name}:{own.lineno})" if own is not None else ""
    return ArmStops(Reason.UNTRACEABLE, f"an arm cannot be traced{place}: {text}")


def _recorded_since(graph: fx.Graph, last: fx.Node | None) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is last:
            break
        if node.op != "placeholder":
            nodes.append(node)
    return nodes[::-1]
