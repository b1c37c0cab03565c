"""End the graph at a call whose error the program would handle.

A compiled graph runs as a whole, in front of or behind the ``try`` that a call stands in, and code
that Inductor makes raises other errors than eager. So such a call is left to Dynamo as a graph
break, and runs in eager, inside the ``try``. Other calls there stay in the graph.

A function that a frame in eager calls is compiled once for all its callers there. So a call that
one of them handles the error of ends the graph for the others, too. Where it was compiled before
such a caller came, a guard has it compiled again then.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from torch import fx

from fusepass.capture.bytecode.exception_handlers import (
    Kinds,
    catching_handler,
    is_in_a_try,
    is_seen,
)
from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import keep, settle, why_settled
from fusepass.capture.source_position import here
from fusepass.graph.safety.failures import failure_of, kinds_of_values
from fusepass.report import log
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.eager_frames import (
    as_written,
    eager_frames,
    frames_with_handlers,
)
from fusepass.torch_private.dynamo.errors.error_hooks import break_or_skip, goes_on
from fusepass.torch_private.dynamo.guards import guard_on
from fusepass.torch_private.versions import capture_supported

WHAT = "An operation may fail where the program would handle the error"
_HINTS = [
    "Move the operation out of the `try` or with-block, or name other errors in the clause.",
    "Or use what does not raise, like `index.clamp(0, n - 1)` and `torch.linalg.cholesky_ex`.",
    'With `options={"rules": {"try": False}}` it stays in the graph, and its error is not handled.',
]


def on_recorded(translator: Any, node: fx.Node) -> None:
    """Called with each call that Dynamo has recorded; breaks the graph where it may not stay.

    Raises:
        Refusal: the call is in an arm of a branch, which then is kept.
    """
    frame = frame_of(translator.output)
    if frame is None or frame.settled or frame.in_message or not _concerns(translator, frame):
        return
    failure = failure_of(node)
    if failure is None:
        return
    handler = catching_handler(translator, frame, failure.kinds)
    place = here(translator, "try")
    if handler is None and frame.callers and why_settled(frame, place) is not None:
        handler = "a handler around another call of this function"
    if handler is None:
        return
    why = f"{failure.text}, and {handler} acts on that"
    if frame.arms:
        raise Refusal(Reason.PARTIAL_OP, why)
    settle(frame, place, why)
    rest = "" if goes_on(translator.output.root_tx) else ", and the rest runs in eager mode"
    keep(frame, place, Reason.PARTIAL_OP, f"{why}: the graph ends here{rest}")
    break_or_skip(translator, WHAT, f"{why}, but not if the call fails in a larger graph.", _HINTS)


def _concerns(translator: Any, frame: Frame) -> bool:
    """Whether errors of a call could be handled; asked at every call."""
    if not (is_in_a_try(translator, frame) or (frame.callers and _any_handled(frame))):
        return False
    return frame.options.rule_on("try") and capture_supported()


def _any_handled(frame: Frame) -> bool:
    return any(rule == "try" for rule, *_ in log.log_of(frame.compiler).settled)


_MOST_PLACES = 4096  # that a guard remembers


class _Unhandled:
    """The condition that no caller handles errors of a frame's calls, asked before each call."""

    text = "no caller handles errors of its calls"

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        # Places that do not act, whatever their locals are: ``with torch.no_grad():`` around a call
        # costs a look into a set in place of 25 us.
        self.passing: set[tuple[CodeType, int]] = set()

    def holds(self) -> bool:
        return not any(map(self._acts, frames_with_handlers()))

    def _acts(self, frame: FrameType) -> bool:
        place = (frame.f_code, frame.f_lasti)
        if place in self.passing:
            return False
        bare = as_written(frame, with_locals=False)
        if bare is None or is_seen([bare], self.kinds):  # what is not known counts as acting
            return is_seen([one for one in [as_written(frame)] if one is not None], self.kinds)
        if len(self.passing) < _MOST_PLACES:
            self.passing.add(place)
        return False


def ask_callers(output_graph: Any, frame: Frame, nodes: Iterable[fx.Node]) -> None:
    """Have a frame compiled again where a caller in eager handles what its calls may raise."""
    if not frame.options.rule_on("try") or not capture_supported():
        return
    kinds = tuple(kinds_of_values(nodes))
    if not kinds:
        return
    if frame.callers is None:
        frame.callers = eager_frames()
    if not is_seen(frame.callers, kinds):  # else it is good for either
        guard_on(output_graph.root_tx, "fusepass_handlers", _Unhandled(kinds))
