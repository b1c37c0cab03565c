"""Where code reads an attribute that an arm in front of it binds, or may have bound."""

from __future__ import annotations

from typing import Any

from fusepass.capture.frame_state import frame_of
from fusepass.capture.restarts import restart_without
from fusepass.capture.source_position import here
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.open_writes import with_older
from fusepass.torch_private.dynamo.phi import PhiVariable
from fusepass.torch_private.dynamo.stack import break_graph


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
