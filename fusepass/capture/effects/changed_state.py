"""Where code reads what an arm in front of it may have changed: an attribute, a container."""

from __future__ import annotations

from typing import Any

from fusepass.capture.frame_state import frame_of
from fusepass.capture.restarts import restart_without
from fusepass.capture.source_position import here
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.open_containers import told_container, updates_of
from fusepass.torch_private.dynamo.open_writes import with_older
from fusepass.torch_private.dynamo.phi import PhiVariable, is_phi
from fusepass.torch_private.dynamo.stack import break_graph, current_translator


def on_read(translator: Any, value: PhiVariable, name: str, older: Any) -> Any:
    """The attribute, which is one of two objects; the branch is kept if one is not there."""
    line = here(translator, "branch").line
    if older is None:
        text = f"line {line} reads {name!r}, which is there after one arm only"
        frame = frame_of(translator.output)
        if frame is not None:
            restart_without(frame, {value.site: (Reason.SIDE_EFFECT, text)})
        break_graph("Attribute that one arm binds", text)
    return with_older(value, older, f"{value.told}, and line {line} looks at it")


def on_asked(container: Any) -> None:
    """Keep the last branch of which an arm changes a container that code looks at."""
    translator = current_translator()
    known = translator.instruction_pointer is not None
    reader = f"line {here(translator, 'branch').line}" if known else "later code"
    text = f"{reader} looks at {told_container(container)}, which one arm only changes"
    sites = [value.site for _, value in updates_of(container) if is_phi(value)]
    frame = frame_of(translator.output)
    if frame is not None:
        restart_without(frame, dict.fromkeys(sites, (Reason.SIDE_EFFECT, text)))
    break_graph("Container that one arm changes", text)
