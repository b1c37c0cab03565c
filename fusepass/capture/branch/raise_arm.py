"""Trace an arm that only raises, and replace the branch by a sink node; trace messages.

The arm is traced up to its ``raise`` like any other, but what only its message needs is tagged:
those nodes leave the graph later and run when the exception is due. The translator then goes on in
the other arm, as if there had been no branch. The text of a print or log call is traced in the same
way (effects/print_hooks.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch import snapshot
from fusepass.capture.bytecode import exception_handlers
from fusepass.capture.bytecode.instructions import RETURNS
from fusepass.capture.frame_state import BranchSite, Frame
from fusepass.capture.nodes.events import MESSAGE, Modes, Sink, record_event
from fusepass.capture.nodes.select_node import Branch
from fusepass.capture.nodes.value_recipe import ValueWriter
from fusepass.capture.refusal import Refusal
from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.totality import depends_on_data
from fusepass.report.decision import Outcome, Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.compile_state import is_dynamos_file, is_internal_file
from fusepass.torch_private.dynamo.deferred_values import message_tracing
from fusepass.torch_private.dynamo.errors import raising
from fusepass.torch_private.dynamo.errors.stop_reasons import python_error, why_stopped
from fusepass.torch_private.dynamo.frame_end import line_of

_MAX_SINKS = 1024  # more in one graph: a loop that only an exception ends


class Raised(Exception):
    """Unwinds the trace of an arm at its ``raise`` statement."""

    def __init__(self, translator: Any, instruction: Any) -> None:
        super().__init__()
        operands = translator.stack[len(translator.stack) - instruction.arg :]
        self.again = instruction.arg == 0
        self.value = stack.realized(operands[0]) if operands else None
        self.cause = stack.realized(operands[1]) if len(operands) > 1 else None
        parts = None if self.value is None else raising.exception_parts(self.value)
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


@contextlib.contextmanager
def message(translator: Any, frame: Frame) -> Iterator[None]:
    """Inside, a message is traced: no partial graph, no handler, nothing from outside is written.

    What is computed from data stays open until the graph has run
    (torch_private/dynamo/deferred_values.py).
    """
    frame.in_message = True
    try:
        with (
            snapshot.closed_scope(translator, Refusal),
            message_tracing(translator, depends_on_data),
        ):
            yield
    finally:
        frame.in_message = False


def tag_as_message(graph: fx.Graph, last: fx.Node | None, site_id: int) -> list[fx.Node]:
    """Mark what was recorded after ``last`` as not part of the program's main path."""
    nodes = snapshot.recorded_since(graph, last)
    for node in nodes:
        node.meta.setdefault(MESSAGE, site_id)
    return nodes


def check_message(nodes: list[fx.Node], whose: str) -> None:
    """Refuse a message that draws random numbers or writes: it runs later, and only if needed."""
    for node in nodes:
        if is_random(node):
            text = f"{whose} draws random numbers ({op_name(node)})"
            raise Refusal(Reason.RANDOM_OP, text)
        if written_nodes(node):
            raise Refusal(Reason.SIDE_EFFECT, f"{whose} writes memory ({op_name(node)})")


def record_sink(branch: snapshot.OpenBranch, arm: bool) -> BranchSite:
    """Trace the arm that raises and record a sink; the translator is left where it was before.

    Raises:
        Refusal: the exception could not be raised after the graph as eager raises it.
    """
    translator, frame, before, place = branch.translator, branch.frame, branch.before, branch.place
    check_site(translator, frame)
    frame.due = bad = due_here(translator, frame, branch.predicate, arm)
    prints = raising.prints_waiting(translator)
    last = snapshot.last_node(branch.graph)
    try:
        raised = _trace(branch, arm)
    finally:
        frame.due = None
        nodes = tag_as_message(branch.graph, last, branch.site)
        after = snapshot.modes(), snapshot.pending_mutations(translator)
        before.restore()
    if after != (before.modes, before.mutations):
        raise Refusal(Reason.SIDE_EFFECT, "the arm that raises changes something outside first")
    check_message(nodes, "the arm that raises")
    if raising.prints_waiting(translator) != prints:
        raise Refusal(Reason.SIDE_EFFECT, "the arm that raises prints first")
    writer = ValueWriter()
    recipe = writer.exception(_check_exception(raised))
    write_sink(translator, branch.site, bad, writer, recipe, raised.stack, raised.cause is not None)
    facts = Branch(branch.site, branch.outer, "sink", False, place.file, place.line)
    text = "the exception is raised after the graph: one read-back per call"
    decision = place.decided(Outcome.APPLIED, Reason.RAISES, text, "sink")
    inside = frozenset(site for site, _ in frame.arms)
    return BranchSite(facts, None, decision, inside=inside)


def check_site(translator: Any, frame: Frame) -> None:
    """Refuse a site at which no exception can wait until the graph has run."""
    if not frame.options.rule_on("sink"):
        raise Refusal(Reason.RULE_OFF, "options ask to keep branches that only raise")
    if raising.is_nested_graph(translator):
        raise Refusal(Reason.RAISES, "an arm only raises, in the body of a higher-order operator")
    if raising.is_handling_exception(translator):
        raise Refusal(Reason.RAISES, "an arm only raises, while another exception is handled")
    pending = raising.pending_changes(translator, but_set_back=True)
    if pending is not None:
        text = (
            f"an arm only raises, and what eager does before it would come after it here: {pending}"
        )
        raise Refusal(Reason.SIDE_EFFECT, text)
    if sum(site.decision.treatment == "sink" for site in frame.sites) >= _MAX_SINKS:
        raise Refusal(Reason.LOOP, "the same graph raises at more than a thousand places")


def error_may_wait(translator: Any, frame: Frame, kind: type[Exception]) -> bool:
    """Whether an error of a call, of some class, may be raised after the graph."""
    if exception_handlers.who_sees(translator, kind) is not None:
        return False
    try:
        check_site(translator, frame)
    except Refusal:
        return False
    return True


def due_here(translator: Any, frame: Frame, predicate: Any, when: bool) -> Any:
    """The 0-d bool tensor that says whether an exception is due, outer branches included."""
    tests = [(frame.predicates[site], arm) for site, arm in frame.arms]
    tests.append((predicate, when))
    bad: Any = None
    for tested, outcome in tests:
        test = tested
        if not outcome:
            not_tested = (tested.as_proxy(),)
            test = stack.wrap_call(translator, "call_function", torch.logical_not, not_tested, {})
        if bad is None:
            bad = test
            continue
        values = [tensor_value(one.as_proxy().node) for one in (bad, test)]
        if len({value.device for value in values if value is not None}) > 1:
            raise Refusal(Reason.DEVICE_MISMATCH, "nested branches test tensors on two devices")
        both = (bad.as_proxy(), test.as_proxy())
        bad = stack.wrap_call(translator, "call_function", torch.logical_and, both, {})
    return bad


def _trace(branch: snapshot.OpenBranch, arm: bool) -> Raised:
    translator = branch.translator
    branch.enter(arm)

    def goes_on() -> bool:
        """Whether the program is still in the arm; at a return Dynamo would compile the graph."""
        index = translator.instruction_pointer
        return index != branch.join and translator.instructions[index].opname not in RETURNS

    try:
        with message(translator, branch.frame):
            while goes_on() and translator.step():
                pass
    except Raised as raised:
        return raised
    except stack.RESTART_ERRORS:
        raise
    except stack.OBSERVED_EXCEPTIONS as error:
        raise Refusal(Reason.RAISES, f"an arm raises {python_error(error)}") from error
    except stack.UNSUPPORTED_ERRORS as error:
        text = f"an arm only raises, what cannot be traced: {why_stopped(error)}"
        raise Refusal(Reason.RAISES, text) from error
    raise Refusal(Reason.RAISES, "an arm raises in a way that cannot be followed")


def _check_exception(raised: Raised) -> Any:
    if raised.has_no_overload:
        text = "an arm calls a function of torch for a subclass, which cannot be traced there"
        raise Refusal(Reason.UNTRACEABLE, text)
    if raised.again or raised.value is None:
        raise Refusal(Reason.RAISES, "an arm raises an older exception again")
    if raised.cause is not None:
        constant, cause = stack.constant_of(raised.cause)
        if not constant or cause is not None:
            raise Refusal(Reason.RAISES, "an arm raises one exception from another")
    if raised.seen_by is not None:
        raise Refusal(Reason.RAISES, f"the exception would pass {raised.seen_by} of the program")
    return raised.value


def write_sink(
    translator: Any,
    site: int,
    bad: Any,
    writer: ValueWriter,
    recipe: Any,
    where: tuple[tuple[str, str, int], ...],
    without_context: bool = False,
) -> None:
    """Put the node into the graph that raises after it, where ``bad`` is true."""
    sink = Sink(
        site=site,
        recipe=recipe,
        stack=where,
        modes=Modes.now(),
        random_calls=raising.random_call_count(translator.output),
        without_context=without_context,
        shows_grad=frozenset(writer.shows_grad),
        shows_whole=frozenset(writer.shows_whole),
    )
    operands = [stack.proxy_of(translator, node) for node in writer.nodes]
    record_event(translator, bad.as_proxy(), operands, sink)


def user_stack(translator: Any) -> Iterator[tuple[str, str, int]]:
    """(file, function, line) of the program's frames, outermost first."""
    for frame in reversed(list(raising.frames_outwards(translator))):
        code = frame.f_code
        if not is_internal_file(code.co_filename):
            line = line_of(frame, frame.current_instruction)
            yield code.co_filename, code.co_name, line
