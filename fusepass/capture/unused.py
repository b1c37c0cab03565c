"""Numbers that the program makes and does not use: made after all where that may raise.

Dynamo takes them out of a complete graph, and so the exceptions that eager raises there: of
``int(x.max())`` where that is NaN. Asked before it does.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import fx

from fusepass.capture.frame import Frame, frame_of
from fusepass.capture.items import FROM_ITEM, keep, made_of
from fusepass.capture.scalar_predicate import CANNOT_RAISE, is_read_back
from fusepass.capture.sink import only_for_message
from fusepass.capture.sink_message import shows
from fusepass.errors import CaptureFault
from fusepass.graph.device_numbers import Kept
from fusepass.graph.unused_numbers import that_may_raise
from fusepass.report.decision import Reason


def keep_raising(output_graph: Any) -> None:
    """Start the frame again if a number is not used of which Python may fail to make another."""
    frame = frame_of(output_graph)
    if frame is None or not frame.items:
        return
    unused = _unused(output_graph.graph)
    try:
        reasons = that_may_raise(unused, is_read_back)
    except Exception as error:  # noqa: BLE001  # our error costs speed, never the program
        first = next(iter(frame.items.values()))
        warnings.warn(CaptureFault(f"{first.file}:{first.line}", repr(error)), stacklevel=2)
        fault = Kept(Reason.INTERNAL, f"{type(error).__name__}: {error}")
        kept = dict.fromkeys(_read_for(frame, unused), fault)
    else:
        kept = {}
        for node, why in reasons.items():
            text = f"what is made of it may raise, though nothing uses that: {why}"
            for item in _read_for(frame, [node]):
                kept.setdefault(item, Kept(Reason.PARTIAL_OP, text, node))
    if kept:
        keep(output_graph, frame, kept)


def _unused(graph: fx.Graph) -> list[fx.Node]:
    """Numbers of which nothing is made that stays in the graph.

    What only a message shows is made when that is due, and not where the program makes it. What was
    traced for a message alone the program makes there, too.
    """
    found: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        made = FROM_ITEM in node.meta and not only_for_message(node)
        if made and all(user in found or shows(user) for user in node.users):
            found[node] = None
    return [node for node in found if CANNOT_RAISE not in node.meta]


def _read_for(frame: Frame, numbers: list[fx.Node]) -> list[fx.Node]:
    return [item for item in made_of(numbers) if item in frame.items]
