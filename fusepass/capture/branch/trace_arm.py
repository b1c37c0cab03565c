"""Trace one arm of a branch, from the jump to the join.

Inside, the translator compiles no partial graph and handles no exception: what would need either
gives the branch back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusepass.capture.branch import snapshot
from fusepass.capture.branch.attribute_writes import attribute_writes
from fusepass.capture.branch.nesting import room_for_arm
from fusepass.capture.bytecode.control_flow import EXIT
from fusepass.capture.bytecode.instructions import RETURNS
from fusepass.capture.masks.lowering import forget_counts
from fusepass.capture.nodes.events import shows
from fusepass.capture.nodes.select_node import ARM
from fusepass.capture.refusal import ArmRaises, ArmStops, Refusal
from fusepass.graph.safety.tensor_kinds import special_or_transformed_reason
from fusepass.report.decision import Reason
from fusepass.report.user_code import is_torchs_file
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.compile_state import input_count
from fusepass.torch_private.dynamo.containers import iterator_states
from fusepass.torch_private.dynamo.errors.stop_reasons import python_error, why_stopped
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import asked_symbols, data_sizes
from fusepass.torch_private.dynamo.side_effects import what_was_done


def trace_arm(
    branch: snapshot.OpenBranch, taken: bool, at_end: Callable[[], None] = lambda: None
) -> snapshot.Arm:
    """Trace an arm; the translator is left where it ends.

    ``at_end`` is called at the join, while what is recorded still belongs to the arm.

    Raises:
        Refusal: it cannot be traced, or does what an arm must not.
        ArmRaises: it raises.
    """
    branch.before.restore()
    arms = branch.frame.arms
    arms.append((branch.site, taken))
    try:
        room = room_for_arm(branch.translator, branch.frame)
        with room, snapshot.closed_scope(branch.translator, ArmRaises):
            traced = _trace(branch, taken, at_end)
            for node in traced.nodes:
                node.meta.setdefault(ARM, arms[-1])
        return traced
    finally:
        arms.pop()


def _trace(branch: snapshot.OpenBranch, taken: bool, at_end: Callable[[], None]) -> snapshot.Arm:
    translator, graph, before = branch.translator, branch.graph, branch.before
    last = snapshot.last_node(graph)
    calls_before = len(graph.nodes) - input_count(translator)
    iterators = [held for held, _ in before.iterators]
    with attribute_writes(translator, iterators) as writes, data_sizes(translator):
        branch.enter(taken)
        _trace_until(translator, branch.join)
        snapshot.check_with_blocks_left(translator, before)
        at_end()
    writes.collect()
    done = None
    nodes = snapshot.recorded_since(graph, last)
    if snapshot.modes() != before.modes:
        done = "leaves grad mode, autocast or inference mode changed"
    elif snapshot.pending_mutations(translator) != before.mutations:
        done = "writes an attribute or variable that existed before it"
    elif len(graph.nodes) - input_count(translator) != calls_before + len(nodes):
        done = "changes what was recorded before it (a hook on a tensor)"
    if done is not None:
        raise Refusal(Reason.SIDE_EFFECT, f"an arm {done}")
    bindings = {name: getattr(translator, name) for name in snapshot.COPIED}
    nodes = [node for node in nodes if not shows(node)]
    new = [node for node in nodes if node not in branch.frame.judged]
    for why in filter(None, map(special_or_transformed_reason, new)):
        raise Refusal(Reason.UNTRACEABLE, f"in an arm, {why}")
    forget_counts(nodes)
    held = iterator_states(iterators)
    return snapshot.Arm(bindings, translator.instruction_pointer, nodes, held, writes)


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
    except stack.RESTART_ERRORS:
        raise
    except stack.OBSERVED_EXCEPTIONS as error:
        raise ArmRaises(Reason.RAISES, f"an arm raises {python_error(error)}") from error
    except stack.UNSUPPORTED_ERRORS as error:
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
