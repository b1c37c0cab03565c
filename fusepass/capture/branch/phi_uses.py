"""Where an instruction looks at a value that is one of two, by a predicate on a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.restarts import NUMBERS, restart_without, why_kept
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.phi import PhiHandlers, PhiVariable, is_phi
from fusepass.torch_private.dynamo.stack import break_graph, current_translator


def _on_use(translator: Any, instruction: Any, operands: int, original: Callable[[], None]) -> None:
    for value in translator.stack[len(translator.stack) - operands :]:
        if is_phi(value):
            _on_asked(value)
    original()


def _on_asked(phi: PhiVariable) -> Any:
    frame = frame_of(current_translator().output)
    if frame is not None:
        _keep(frame, phi)
    return phi


def _keep(frame: Frame, phi: PhiVariable) -> NoReturn:
    """Start the frame again without the branch that left a value."""
    why = Reason.PYTHON_VALUE, phi.told
    for site in frame.sites:
        if site.branch.site == phi.site:  # its numbers may have been nodes at first
            why = why_kept(frame, NUMBERS, site.place.instruction) or why
    restart_without(frame, {phi.site: why})
    break_graph("Value that differs between arms", phi.told)


PHIS = PhiHandlers(_on_asked, _on_use)
