"""Replace ``print``, logging and ``warnings.warn`` in traced code by a line node.

The line is written after the graph, before the caller's next statement, so what the program does in
between must not be able to tell: see the table in docs/design/prints_and_raises.md.

From where ``print`` is loaded to its call, what Dynamo would read back or specialise on is kept
open: ``print(f"{loss.item():.3f}", x[x > 0])`` reads nothing while the graph runs. Where that is
not possible the frame starts again, with the operands traced as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import fx

from fusepass.capture.branch.raise_arm import Raised, check_message, message, tag_as_message
from fusepass.capture.branch.snapshot import last_node
from fusepass.capture.effects.grad_fn_names import look_at_end
from fusepass.capture.effects.listener_guard import add_listener_checks
from fusepass.capture.effects.print_recipe import Utterance, check_sure, utterance
from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.nodes.events import Line, Modes, record_event
from fusepass.capture.nodes.tensor_repr import Look, LookChoice
from fusepass.capture.nodes.value_recipe import OPERAND, WHOLE, ValueWriter
from fusepass.capture.refusal import Refusal, refusal_after
from fusepass.capture.restarts import keep, restart_leaving, why_kept
from fusepass.capture.source_position import here, users_location
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Outcome, Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.errors import raising
from fusepass.torch_private.dynamo.print_calls import known_logger, pin_level
from fusepass.torch_private.versions import capture_supported

_MAX_LINES = 4096  # more in one graph: a loop
_LEAVES = ("STORE_", "DELETE_", "RETURN_", "YIELD_", "RAISE_", "IMPORT_", "BEFORE_", "WITH_")


def on_speaker(translator: Any, height: int) -> None:
    """Trace up to the call of print or the like, which was loaded above a stack of this height."""
    frame = frame_of(translator.output)
    if frame is None:
        return
    place = (translator.f_code, translator.instruction_pointer - 1)
    frame.speakers[id(translator), height] = place
    if frame.in_message or _leaves(translator, set()):
        return
    try:
        check_frame(translator, frame, place)
    except Refusal:
        return  # said again at the call
    try:
        _trace(translator, frame, height)
    except Raised:
        why = Refusal(Reason.RAISES, "an operand raises an exception")
    except stack.RESTART_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 - our error costs speed, never the program
        why = refusal_after(error, "an operand", users_location(translator))
    else:
        return
    keep(frame, here(translator, "print"), why.code, why.text)
    restart_leaving(frame, {("print", place): (why.code, why.text)})


def _trace(translator: Any, frame: Frame, height: int) -> None:
    """Trace the operands of a call for its text."""
    graph = translator.output.graph
    last = last_node(graph)
    speculation, hidden = translator.current_speculation, set[str]()
    with message(translator, frame):
        while len(translator.stack) > height + 1:
            if _leaves(translator, hidden) or not translator.step():
                raise Refusal(Reason.UNTRACEABLE, "the call is no plain expression")
    translator.current_speculation = speculation
    if frame.arms:
        nodes = tag_as_message(graph, last, frame.arms[-1][0])
        check_message(nodes, "what is written in an arm")


def _leaves(translator: Any, hidden: set[str]) -> bool:
    """Whether the next instruction is none of an expression.

    Python 3.12 has comprehensions in place: it hides the locals that they bind.
    """
    instruction = translator.instructions[translator.instruction_pointer]
    name = instruction.opname
    if name == "LOAD_FAST_AND_CLEAR":
        hidden.add(instruction.argval)
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    if name.startswith("STORE_FAST") and hidden.issuperset(names):
        return False
    return bool(name.startswith(_LEAVES))


def on_speech(
    translator: Any,
    speaker: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    call: Callable[[], Any],
) -> Any:
    """A call that writes a line: record it, or leave it to Dynamo, which breaks the graph."""
    frame = frame_of(translator.output)
    if frame is None or raising.is_exporting(translator):
        return call()
    if speaker.kind in ("text", "stream"):
        _note_kept(translator, frame, speaker, args)
        return call()
    if speaker.kind in ("logger", "enabled"):
        known = _about_logger(translator, frame, speaker, args) if not kwargs else None
        return call() if known is None else known
    place = place_of(translator, frame)
    try:
        check_frame(translator, frame, place)
        record(translator, frame, place, utterance(translator, speaker, args, kwargs))
    except stack.RESTART_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 - our error costs speed, never the program
        why = refusal_after(error, "an argument", users_location(translator))
    else:
        return stack.constant(None)
    if frame.in_message or frame.arms:
        raise why
    keep(frame, here(translator, "print"), why.code, why.text)
    return call()


def _about_logger(translator: Any, frame: Frame, speaker: Any, args: list[Any]) -> Any:
    """What ``getLogger`` and ``isEnabledFor`` say, as it is now; None if it might change.

    Python code of the program may stand behind both, in classes of its own.
    """
    options = frame.options
    given = [stack.constant_of(stack.realized(arg)) for arg in args]
    known = all(constant for constant, _ in given) and len(given) <= 1
    if not known or not options.defer_prints or not options.rule_on("print"):
        return None
    if speaker.kind == "logger":
        logger = speaker.function(*(value for _, value in given))
        return known_logger(translator, logger)
    plain = type(speaker.logger) in (logging.Logger, logging.RootLogger)
    changed = raising.changed_settings(translator) is not None
    if changed or not plain or not pin_level(speaker.logger, speaker.source):
        return None
    return stack.constant(speaker.logger.isEnabledFor(*(value for _, value in given)))


def _note_kept(translator: Any, frame: Frame, speaker: Any, args: list[Any]) -> None:
    """Put on record what reads a text back for the program, or writes around ``print``."""
    if frame.in_message or frame.arms:
        return
    if speaker.kind == "stream":
        text = f"{speaker.method} is called, of which the program gets a number back"
        keep(frame, here(translator, "print"), Reason.SIDE_EFFECT, text)
    elif args and stack.is_any_tensor(stack.realized(args[0])):
        text = "the program holds the text of a tensor"
        keep(frame, here(translator, "print"), Reason.PYTHON_VALUE, text)


def place_of(translator: Any, frame: Frame) -> Any:
    """Where the call being traced is; the same whether or not its operands were traced for it."""
    below = id(translator), len(translator.stack)
    return frame.speakers.get(below, (translator.f_code, translator.instruction_pointer - 1))


def check_frame(translator: Any, frame: Frame, place: Any) -> None:
    """Refuse a call that must stay where it is, whatever its operands are."""
    options = frame.options
    if not options.defer_prints or not options.rule_on("print"):
        code = Reason.FORCED if not options.defer_prints else Reason.RULE_OFF
        raise Refusal(code, "options ask to keep calls that write a line")
    if not capture_supported():
        raise Refusal(Reason.UNSUPPORTED_VERSION, "capture is off on this torch or Python version")
    kept = why_kept(frame, "print", place)
    if kept is not None:
        raise Refusal(*kept)
    if any(map(stack.is_generator_frame, raising.frames_outwards(translator))):
        raise Refusal(Reason.GENERATOR, "a generator writes the line")
    if raising.is_nested_graph(translator):
        raise Refusal(
            Reason.UNTRACEABLE, "a line is written in the body of a higher-order operator"
        )
    contexts = map(raising.unknown_context, raising.frames_outwards(translator))
    found = next(filter(None, contexts), None)
    if found is not None:
        text = f"a with-block around the call may look at what is written ({found})"
        raise Refusal(Reason.SIDE_EFFECT, text)
    if len(frame.lines) >= _MAX_LINES:
        raise Refusal(Reason.LOOP, "the same graph writes thousands of lines")


def record(translator: Any, frame: Frame, place: Any, said: Utterance, only_if: Any = None) -> None:
    """Put a line node where a call stands that writes a line; refuse one that cannot wait.

    With ``only_if``, a tracked 0-d bool tensor, the line is written where that holds.
    """
    if said.listener is not None:
        pending = raising.pending_changes(translator)
        if pending is not None:
            text = f"{said.listener} could see that what eager has done before waits: {pending}"
            raise Refusal(Reason.SIDE_EFFECT, text)
    changed = raising.changed_settings(translator)
    if changed is not None:
        raise Refusal(
            Reason.SIDE_EFFECT, f"{changed} was changed, which may change what is written"
        )
    writer = ValueWriter(Reason.UNTRACEABLE)
    recipe = said.recipe(writer)
    check_sure(recipe, writer.nodes)
    when = [(frame.predicates[site].as_proxy(), arm) for site, arm in frame.arms]
    if frame.due is not None:
        when.append((frame.due.as_proxy(), True))
    if only_if is not None:
        when.append((only_if.as_proxy(), True))
    looks = _looks(translator.output.graph, writer)
    operands = [stack.proxy_of(translator, node) for node in writer.nodes]
    line = Line(
        place=place,
        recipe=recipe,
        looks=looks,
        on_device=frozenset(i for i, look in enumerate(writer.looks) if look == OPERAND),
        begun_before=frozenset(writer.begun_before),
        modes=Modes.now(),
        listener=said.listener,
        wanted=said.wanted,
    )
    record_event(translator, tuple(when), operands, line)
    add_listener_checks(translator, frame, said.questions)
    frame.lines.append((place, frozenset(site for site, _ in frame.arms)))
    text = "the line is written after the graph" + (
        ", at one read-back per call" if operands or only_if is not None else ""
    )
    calling = here(said.frame or translator, "print")
    decision = calling.decided(Outcome.APPLIED, Reason.AFTER_GRAPH, text, "late")
    frame.round_trips[calling.position] = decision


def _looks(graph: fx.Graph, writer: ValueWriter) -> dict[int, Look | LookChoice | None]:
    """What the texts of the operands show; None where it is not known."""
    looks: dict[int, Look | LookChoice | None] = {}
    shows = list(zip(writer.nodes, writer.looks, strict=True))  # tests are added
    for i, (node, how) in enumerate(shows):
        value = tensor_value(node)
        if value is not None and how == OPERAND:
            looks[i] = None if value.requires_grad else Look(value.device)
        elif value is not None and how == WHOLE:
            looks[i] = look_at_end(graph, node, writer.position)
    return looks
