"""Trace an arm that only raises, and replace the branch by a sink node.

The arm is traced up to its ``raise`` like any other, but what only its message needs is tagged:
those nodes leave the graph later and run when the exception is due. The translator then goes on in
the other arm, as if there had been no branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.snapshot import Bindings, modes, pending_mutations
from fusepass.capture.bytecode import exception_handlers
from fusepass.capture.bytecode.instructions import RETURNS
from fusepass.capture.effects.message_trace import (
    autocast_now,
    check_message,
    message,
    tag_as_message,
)
from fusepass.capture.frame_state import BranchSite, Frame
from fusepass.capture.nodes.raise_node import SINK, Sink, sink
from fusepass.capture.nodes.select_node import Branch
from fusepass.capture.nodes.value_recipe import ValueWriter
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.compile_state import is_dynamos_file, is_internal_file
from fusepass.torch_private.dynamo.errors.raising import (
    exception_parts,
    frames_outwards,
    is_handling_exception,
    is_nested_graph,
    pending_changes,
    prints_waiting,
    random_call_count,
)
from fusepass.torch_private.dynamo.errors.stop_reasons import python_error, why_stopped
from fusepass.torch_private.dynamo.frame_end import line_of
from fusepass.torch_private.dynamo.stack import (
    constant_of,
    observed_exceptions,
    realized,
    restart_errors,
    unsupported_errors,
)

_MAX_SINKS = 1024  # more in one graph: a loop that only an exception ends


class Raised(Exception):
    """Unwinds the trace of an arm at its ``raise`` statement."""

    def __init__(self, translator: Any, instruction: Any) -> None:
        super().__init__()
        operands = translator.stack[len(translator.stack) - instruction.arg :]
        self.again = instruction.arg == 0
        self.value = realized(operands[0]) if operands else None
        self.cause = realized(operands[1]) if len(operands) > 1 else None
        parts = None if self.value is None else exception_parts(self.value)
        self.seen_by = None if parts is None else exception_handlers.who_sees(translator, parts[0])
        self.stack = tuple(user_stack(translator))
        # Dynamo may hand it no overload where eager finds one (``len`` of a subclass, torch 2.11).
        self.has_no_overload = translator.f_code is torch.overrides.handle_torch_function.__code__


def on_raise(translator: Any, frame: Frame | None, instruction: Any) -> None:
    """Called before each ``raise``; unwinds when it is the message of a sink that is traced."""
    if frame is None or not frame.in_message:
        return
    if is_dynamos_file(translator.f_code.co_filename):
        # Where it computes with values it does not know, it may raise what eager does not.
        raise Refusal(Reason.RAISES, "Dynamo's stand-in for a builtin raises in an arm")
    raise Raised(translator, instruction)


def record_sink(
    translator: Any,
    frame: Frame,
    site_id: int,
    before: Bindings,
    raising: tuple[int, list[Any], int],
    predicate: Any,
    when: bool,
    where: tuple[str, int],
) -> BranchSite:
    """Trace the arm that raises and record a sink; the translator is left where it was before.

    Args:
        translator: Dynamo's translator.
        frame: capture's state for this frame.
        site_id: number of the site.
        before: the translator's state at the branch.
        raising: where the raising arm starts, the stack it starts with, and the join it must not
            get to.
        predicate: the tracked 0-d bool tensor tested.
        when: which outcome of the predicate raises.
        where: file and line of the branch.

    Raises:
        Refusal: the exception could not be raised after the graph as eager raises it.
    """
    check_site(translator, frame)
    bad = _bad(translator, frame, predicate, when)
    prints = prints_waiting(translator)
    graph = translator.output.graph
    last = next(iter(reversed(graph.nodes)))
    frame.due = bad
    try:
        raised = _trace(translator, frame, raising)
    finally:
        frame.due = None
        nodes = tag_as_message(graph, last, site_id)
        after = modes(), pending_mutations(translator)
        before.restore()
    if after != (before.modes, before.mutations):
        raise Refusal(Reason.SIDE_EFFECT, "the arm that raises changes something outside first")
    check_message(nodes, "the arm that raises")
    if prints_waiting(translator) != prints:
        raise Refusal(Reason.SIDE_EFFECT, "the arm that raises prints first")
    _write_sink(translator, site_id, bad, raised, where)
    branch = Branch(site_id, frame.arms[-1] if frame.arms else None, "sink", False, *where)
    text = "the exception is raised after the graph: one read-back per call"
    decision = Decision(
        Station.CAPTURE, "branch", Outcome.APPLIED, Reason.RAISES, text, "sink", *where
    )
    inside = frozenset(site for site, _ in frame.arms)
    return BranchSite(branch, None, decision, predicate=predicate.as_proxy().node, inside=inside)


def check_site(translator: Any, frame: Frame) -> None:
    """What can be said before what raises is traced.

    Raises:
        Refusal: no exception that is due here can wait until the graph has run.
    """
    if not frame.options.rule_on("sink"):
        raise Refusal(Reason.RULE_OFF, "options ask to keep branches that only raise")
    if is_nested_graph(translator):
        raise Refusal(Reason.RAISES, "an arm only raises, in the body of a higher-order operator")
    if is_handling_exception(translator):
        raise Refusal(Reason.RAISES, "an arm only raises, while another exception is handled")
    pending = pending_changes(translator)
    if pending is not None:
        text = (
            f"an arm only raises, and what eager does before it would come after it here: {pending}"
        )
        raise Refusal(Reason.SIDE_EFFECT, text)
    if sum(site.decision.treatment == "sink" for site in frame.sites) >= _MAX_SINKS:
        raise Refusal(Reason.LOOP, "the same graph raises at more than a thousand places")


def _bad(translator: Any, frame: Frame, predicate: Any, when: bool) -> Any:
    """The 0-d bool tensor that says whether the exception is due, outer branches included."""
    tests = [(frame.predicates[site], arm) for site, arm in frame.arms] + [(predicate, when)]
    bad: Any = None
    for tested, outcome in tests:
        test = tested
        if not outcome:
            not_tested = (tested.as_proxy(),)
            test = stack.wrap_call(translator, "call_function", torch.logical_not, not_tested, {})
        if bad is None:
            bad = test
            continue
        if _device(bad) != _device(test):
            raise Refusal(Reason.DEVICE_MISMATCH, "nested branches test tensors on two devices")
        both = (bad.as_proxy(), test.as_proxy())
        bad = stack.wrap_call(translator, "call_function", torch.logical_and, both, {})
    return bad


def _device(tracked: Any) -> Any:
    value = tensor_value(tracked.as_proxy().node)
    return None if value is None else value.device


def _trace(translator: Any, frame: Frame, raising: tuple[int, list[Any], int]) -> Raised:
    translator.instruction_pointer = translator.start_point = raising[0]
    translator.stack = list(raising[1])
    try:
        with message(translator, frame):
            while _goes_on(translator, raising[2]) and translator.step():
                pass
    except Raised as raised:
        return raised
    except restart_errors():
        raise
    except observed_exceptions() as error:
        raise Refusal(Reason.RAISES, f"an arm raises {python_error(error)}") from error
    except unsupported_errors() as error:
        text = f"an arm only raises, what cannot be traced: {why_stopped(error)}"
        raise Refusal(Reason.RAISES, text) from error
    raise Refusal(Reason.RAISES, "an arm raises in a way that cannot be followed")


def _goes_on(translator: Any, join: int) -> bool:
    """Whether the program is still in the arm; at a return Dynamo would compile the graph."""
    index = translator.instruction_pointer
    return index != join and translator.instructions[index].opname not in RETURNS


def _check_exception(raised: Raised) -> Any:
    if raised.has_no_overload:
        text = "an arm calls a function of torch for a subclass, which cannot be traced there"
        raise Refusal(Reason.UNTRACEABLE, text)
    if raised.again or raised.value is None:
        raise Refusal(Reason.RAISES, "an arm raises an older exception again")
    if raised.cause is not None:
        constant, cause = constant_of(raised.cause)
        if not constant or cause is not None:
            raise Refusal(Reason.RAISES, "an arm raises one exception from another")
    if raised.seen_by is not None:
        raise Refusal(Reason.RAISES, f"the exception would pass {raised.seen_by} of the program")
    return raised.value


def _write_sink(
    translator: Any, site_id: int, bad: Any, raised: Raised, where: tuple[str, int]
) -> None:
    """Put the node into the graph that raises after it, where ``bad`` is true."""
    writer = ValueWriter()
    recipe = writer.exception(_check_exception(raised))
    operands = [fx.Proxy(node, translator.output.current_tracer) for node in writer.nodes]
    proxy = translator.output.create_proxy("call_function", sink, (bad.as_proxy(), *operands), {})
    proxy.node.meta["example_value"] = None
    proxy.node.meta[SINK] = Sink(
        site=site_id,
        recipe=recipe,
        stack=raised.stack,
        without_context=raised.cause is not None,
        shows_grad=frozenset(writer.shows_grad),
        shows_whole=frozenset(writer.shows_whole),
        grad_enabled=torch.is_grad_enabled(),
        autocast=autocast_now(),
        random_calls=random_call_count(translator.output),
        file=where[0],
        line=where[1],
    )


def user_stack(translator: Any) -> Iterator[tuple[str, str, int]]:
    """(file, function, line) of the program's frames, outermost first."""
    for frame in reversed(list(frames_outwards(translator))):
        code = frame.f_code
        if not is_internal_file(code.co_filename):
            line = line_of(frame, frame.current_instruction)
            yield code.co_filename, code.co_name, line
