"""Replace ``print``, logging and ``warnings.warn`` in traced code by a print node.

The line is written after the graph, before the caller's next statement, so what the program does in
between must not be able to tell: see the table in docs/design/prints_and_raises.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.effects.grad_fn_names import look_at_end
from fusepass.capture.effects.listener_guard import add_listener_checks
from fusepass.capture.effects.message_trace import autocast_now
from fusepass.capture.effects.print_dry_run import check_sure
from fusepass.capture.effects.print_recipe import Utterance, utterance
from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.nodes.print_node import LINE, Line, line
from fusepass.capture.nodes.tensor_repr import Look, LookChoice
from fusepass.capture.nodes.value_recipe import OPERAND, WHOLE, ValueWriter
from fusepass.capture.refusal import Refusal, refusal_after
from fusepass.capture.restarts import keep, why_kept
from fusepass.capture.source_position import here, location, position
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.torch_private.dynamo.errors.raising import (
    changed_settings,
    frames_outwards,
    is_exporting,
    is_nested_graph,
    pending_changes,
    unknown_context,
)
from fusepass.torch_private.dynamo.print_calls import known_logger, pin_level
from fusepass.torch_private.dynamo.stack import (
    constant,
    constant_of,
    is_any_tensor,
    is_generator_frame,
    proxy_of,
    realized,
    restart_errors,
)
from fusepass.torch_private.versions import capture_supported

_MAX_LINES = 4096  # more in one graph: a loop


def on_speech(
    translator: Any,
    speaker: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    call: Callable[[], Any],
) -> Any:
    """A call that writes a line: record it, or leave it to Dynamo, which breaks the graph."""
    frame = frame_of(translator.output)
    if frame is None or is_exporting(translator):
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
    except restart_errors():
        raise
    except Exception as error:  # noqa: BLE001 - our error costs speed, never the program
        where = location(translator, translator.current_instruction)
        why = refusal_after(error, "an argument", where)
    else:
        return constant(None)
    if frame.in_message or frame.arms:
        raise why
    keep(frame, here(translator, "print"), why.code, why.text)
    return call()


def _about_logger(translator: Any, frame: Frame, speaker: Any, args: list[Any]) -> Any:
    """What ``getLogger`` and ``isEnabledFor`` say, as it is now; None if it might change.

    Python code of the program may stand behind both, in classes of its own.
    """
    options = frame.options
    given = [constant_of(realized(arg)) for arg in args]
    known = all(constant for constant, _ in given) and len(given) <= 1
    if not known or not options.defer_prints or not options.rule_on("print"):
        return None
    if speaker.kind == "logger":
        logger = speaker.function(*(value for _, value in given))
        return known_logger(translator, logger)
    plain = type(speaker.logger) in (logging.Logger, logging.RootLogger)
    changed = changed_settings(translator) is not None
    if changed or not plain or not pin_level(speaker.logger, speaker.source):
        return None
    return constant(speaker.logger.isEnabledFor(*(value for _, value in given)))


def _note_kept(translator: Any, frame: Frame, speaker: Any, args: list[Any]) -> None:
    """Put on record what reads a text back for the program, or writes around ``print``."""
    if frame.in_message or frame.arms:
        return
    if speaker.kind == "stream":
        text = f"{speaker.method} is called, of which the program gets a number back"
        keep(frame, here(translator, "print"), Reason.SIDE_EFFECT, text)
    elif args and is_any_tensor(realized(args[0])):
        text = "the program holds the text of a tensor"
        keep(frame, here(translator, "print"), Reason.PYTHON_VALUE, text)


def place_of(translator: Any, frame: Frame) -> Any:
    """Where the call being traced is; the same whether or not its operands were traced for it."""
    below = id(translator), len(translator.stack)
    return frame.speakers.get(below, (translator.f_code, translator.instruction_pointer - 1))


def check_frame(translator: Any, frame: Frame, place: Any) -> None:
    """What can be said before the operands of a call are known.

    Raises:
        Refusal: the call must stay where it is.
    """
    options = frame.options
    if not options.defer_prints or not options.rule_on("print"):
        code = Reason.FORCED if not options.defer_prints else Reason.RULE_OFF
        raise Refusal(code, "options ask to keep calls that write a line")
    if not capture_supported():
        raise Refusal(Reason.UNSUPPORTED_VERSION, "capture is off on this torch or Python version")
    kept = why_kept(frame, "print", place)
    if kept is not None:
        raise Refusal(*kept)
    if any(map(is_generator_frame, frames_outwards(translator))):
        raise Refusal(Reason.GENERATOR, "a generator writes the line")
    if is_nested_graph(translator):
        raise Refusal(
            Reason.UNTRACEABLE, "a line is written in the body of a higher-order operator"
        )
    contexts = map(unknown_context, frames_outwards(translator))
    found = next(filter(None, contexts), None)
    if found is not None:
        text = f"a with-block around the call may look at what is written ({found})"
        raise Refusal(Reason.SIDE_EFFECT, text)
    if len(frame.lines) >= _MAX_LINES:
        raise Refusal(Reason.LOOP, "the same graph writes thousands of lines")


def record(translator: Any, frame: Frame, place: Any, said: Utterance, only_if: Any = None) -> None:
    """Put a line node where a call stands that writes a line.

    Args:
        translator: Dynamo's.
        frame: of capture.
        place: of the call, by :func:`place_of`.
        said: what it writes.
        only_if: a tracked 0-d bool tensor, under which it writes that; None if it always does.

    Raises:
        Refusal: it cannot be written later as it would be now.
    """
    if said.listener is not None:
        pending = pending_changes(translator)
        if pending is not None:
            text = f"{said.listener} could see that what eager has done before waits: {pending}"
            raise Refusal(Reason.SIDE_EFFECT, text)
    changed = changed_settings(translator)
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
    operands = [proxy_of(translator, node) for node in writer.nodes]
    proxy = translator.output.create_proxy("call_function", line, (tuple(when), *operands), {})
    calling = said.frame or translator
    where = location(calling, calling.current_instruction)
    proxy.node.meta["example_value"] = None
    proxy.node.meta[LINE] = Line(
        place=place,
        position=position(calling, calling.current_instruction),
        recipe=recipe,
        looks=looks,
        on_device=frozenset(i for i, look in enumerate(writer.looks) if look == OPERAND),
        begun_before=frozenset(writer.begun_before),
        grad_enabled=torch.is_grad_enabled(),
        autocast=autocast_now(),
        file=where[0],
        line=where[1],
        listener=said.listener,
        wanted=said.wanted,
    )
    add_listener_checks(translator, frame, said.questions)
    frame.lines.append((place, frozenset(site for site, _ in frame.arms)))
    text = "the line is written after the graph" + (
        ", at one read-back per call" if operands or only_if is not None else ""
    )
    decision = Decision(
        Station.CAPTURE, "print", Outcome.APPLIED, Reason.AFTER_GRAPH, text, "late", *where
    )
    frame.round_trips[proxy.node.meta[LINE].position] = decision


def _looks(graph: fx.Graph, writer: ValueWriter) -> dict[int, Look | LookChoice | None]:
    """What the texts of the operands show; None where it is not known."""
    looks: dict[int, Look | LookChoice | None] = {}
    shows = list(zip(writer.nodes, writer.looks, strict=True))  # tests are added
    for i, (node, how) in enumerate(shows):
        value = tensor_value(node)
        if value is None or how not in (WHOLE, OPERAND):
            continue
        if how == OPERAND and not value.requires_grad:
            looks[i] = Look(value.device)
        elif how == OPERAND:
            looks[i] = None
        else:
            looks[i] = look_at_end(graph, node, writer.position)
    return looks
