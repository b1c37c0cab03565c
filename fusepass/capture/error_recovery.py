"""After an error in a trace, undo captures that may have caused it, and trace again.

First the numbers and sizes that are unknown, then all there is: Dynamo then compiles the frame as
it does without capture. A program never ends worse than without fusepass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusepass.capture.frame_state import Frame, any_frame_of, frame_of
from fusepass.capture.refusal import fault
from fusepass.capture.restarts import restart_plain, restart_without
from fusepass.capture.scalars.deferred_items import asked_numbers
from fusepass.errors import FusepassError
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.error_hooks import (
    cannot_resume,
    fails_on_fakes,
    is_inductors,
    violated,
)
from fusepass.torch_private.dynamo.errors.stop_reasons import error_in_short, place_of, python_error
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import asked_symbols, has_unknown_in_hand


def on_error(translator: Any, error: Exception) -> None:
    """Code behind a branch fails while it is traced, which it may not do when it runs.

    The program may never get behind a raise; and a number that differs between arms, unknown here,
    is known there.
    """
    frame = frame_of(translator.output)
    if frame is None or _is_ours(error):
        return
    text = f"what follows the raise fails when it is traced ({error_in_short(error)})"
    sinks = [s.branch.site for s in frame.sites if s.branch.treatment == "sink"]
    lost = dict.fromkeys(sinks, (Reason.UNTRACEABLE, text))
    text = "a Python number differs between the arms, and its value is asked for afterwards"
    numbers = [s.branch.site for s in frame.sites if s.leaves_numbers]
    lost |= dict.fromkeys(numbers, (Reason.PYTHON_VALUE, text))
    restart_without(frame, lost)
    _restart_knowing(translator, frame, error)
    if not translator.one_graph and frame.decisions:  # else it is the program's own
        restart_plain(frame, Reason.UNTRACEABLE, _cannot_be_traced(error))


def on_fault(translator: Any, error: Exception) -> None:
    """Dynamo, the compiler behind it or our own code fails, which a user shall not meet."""
    frame = frame_of(translator.output)
    if frame is None or _is_ours(error):
        return
    if fails_on_fakes(error):
        on_error(translator, error)
        if frame.decisions:  # may not go back: it is the program's own
            return
    _restart_knowing(translator, frame, error)
    if cannot_resume(translator, error):  # captured or not: no fault of ours
        text = "torch cannot go on behind a graph break in a coroutine or generator"
        restart_plain(frame, Reason.GENERATOR, text)
    if is_inductors(error):  # which may be for want of a compiler: without capture we shall see
        text = f"Inductor cannot compile the graph with what is captured ({error_in_short(error)})"
        restart_plain(frame, Reason.INTERNAL, text)
    for decision in frame.decisions[:1]:
        fault(error, decision.file, decision.line)
    restart_plain(frame, Reason.INTERNAL, _cannot_be_traced(error))


def on_observed(translator: Any, error: Exception) -> None:
    """Dynamo finds that the program raises: of a value it does not know, that may be wrong.

    ``len`` of a text with an unknown number in it raises TypeError there, and an ``except`` of the
    program's own would take it. An attribute or a key that is missing is not about a number.
    """
    frame = frame_of(translator.output)
    if frame is None or not (frame.items or frame.selections):
        return
    if has_unknown_in_hand(translator, error):
        _restart_knowing(translator, frame, error)


def on_failing_call(translator: Any) -> bool:
    """Whether the graph may break where a call fails on fake tensors.

    Where nothing was captured (any more) the call fails in eager too, or Dynamo cannot do it: then
    eager's own error is what the caller should see, or there is none.
    """
    frame = any_frame_of(translator.output)
    return frame is not None and (frame.plain or not (frame.arms or frame.decisions))


def restart_if_violated(output_graph: Any, frame: Frame) -> None:
    """Start the frame again without capture if torch will refuse it for the sizes it holds for.

    More of the program is one frame with what is captured, and an arm that is not taken may ask for
    a size as well. Where the frame as it is violates a mark, too, the user learns of it then.
    """
    if frame.plain or not frame.decisions or output_graph.root_tx.one_graph:
        return  # what is captured may not go back where the graph may not break
    error = violated(output_graph)
    if error is not None:
        text = "with what is captured the frame does not hold for every size that is marked dynamic"
        restart_plain(frame, Reason.SIZE, text)


def _is_ours(error: BaseException) -> bool:
    """Whether it is an error that fusepass itself tells the user of."""
    inner = getattr(error, "inner_exception", None)
    return isinstance(error, FusepassError) or isinstance(inner, FusepassError)


def _restart_knowing(translator: Any, frame: Frame, error: Exception) -> None:
    """Start the frame again, the sizes and numbers known that are not; go on if there is none."""
    why = Reason.UNTRACEABLE, _fails(error, "its size")
    restart_without(frame, dict.fromkeys(frame.selections.values(), why))
    why = Reason.UNTRACEABLE, _fails(error, "the number")
    restart_without(frame, asked_numbers(translator, frame, error, why))


def _fails(error: BaseException, unknown: str) -> str:
    """Describe a failure and its line. It need not be about the unknown value; nobody can tell."""
    found = place_of(error)
    place = f" ({Path(found[0]).name}:{found[1]})" if found else ""
    if asked_symbols(error):
        return f"what follows has to know {unknown}{place}"
    return (
        f"{python_error(error)} is raised behind it{place} while {unknown} is not known, which may "
        "be why: move it behind that line"
    )


def _cannot_be_traced(error: Exception) -> str:
    return f"the frame cannot be traced with what is captured ({error_in_short(error)})"
