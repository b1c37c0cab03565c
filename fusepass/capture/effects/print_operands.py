"""Trace the operands of a print, log or warning call for its text.

From where ``print`` is loaded to its call, what Dynamo would read back or specialise on is kept
open: ``print(f"{loss.item():.3f}", x[x > 0])`` reads nothing while the graph runs. The call itself
is then recorded by speech.py. Where that is not possible the frame starts again, with the operands
traced as usual.
"""

from __future__ import annotations

from typing import Any

from fusepass.capture.branch.raise_arm import Raised
from fusepass.capture.effects import print_hooks
from fusepass.capture.effects.message_trace import check_message, message, tag_as_message
from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.refusal import Refusal, refusal_after
from fusepass.capture.restarts import keep, restart_leaving
from fusepass.capture.source_position import here, location
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.stack import (
    restart_errors,
)

_LEAVES = ("STORE_", "DELETE_", "RETURN_", "YIELD_", "RAISE_", "IMPORT_", "BEFORE_", "WITH_")


def on_speaker(translator: Any, height: int) -> None:
    """Print or the like was just loaded: trace up to its call.

    Args:
        translator: Dynamo's translator.
        height: of the stack below what was loaded.
    """
    frame = frame_of(translator.output)
    if frame is None:
        return
    place = (translator.f_code, translator.instruction_pointer - 1)
    frame.speakers[id(translator), height] = place
    if frame.in_message or _leaves(translator, set()):
        return
    try:
        print_hooks.check_frame(translator, frame, place)
    except Refusal:
        return  # said again at the call
    try:
        _trace(translator, frame, height)
    except Raised:
        why = Refusal(Reason.RAISES, "an operand raises an exception")
    except restart_errors():
        raise
    except Exception as error:  # noqa: BLE001 - our error costs speed, never the program
        where = location(translator, translator.current_instruction)
        why = refusal_after(error, "an operand", where)
    else:
        return
    keep(frame, here(translator, "print"), why.code, why.text)
    restart_leaving(frame, {("print", place): (why.code, why.text)})


def _trace(translator: Any, frame: Frame, height: int) -> None:
    graph = translator.output.graph
    last = next(iter(reversed(graph.nodes)), None)
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
