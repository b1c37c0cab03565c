"""Find numbers and selections that the program does not use, but whose making may raise.

Dynamo takes them out of a complete graph, and so the exceptions that eager raises there: of
``int(x.max())`` where that is NaN, of ``1 / len(x[mask])``. Asked before it does.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from fusepass.capture.effects.raise_operands import shows
from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.masks.selection_count import range_of_count, selection_of
from fusepass.capture.nodes.raise_node import is_message_only
from fusepass.capture.refusal import fault
from fusepass.capture.restarts import Captured, Why, restart_without
from fusepass.capture.scalars.deferred_items import FROM_ITEM, made_of, reasons
from fusepass.capture.scalars.lowering import KeptScalar
from fusepass.capture.scalars.raising_conversions import that_may_raise
from fusepass.capture.scalars.scalar import kind_of
from fusepass.capture.scalars.scalar_predicate import CANNOT_RAISE, is_read_back
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import unknown_sizes


def keep_raising(output_graph: Any) -> None:
    """Start the frame again if a number is not used of which Python may fail to make another."""
    frame = frame_of(output_graph)
    if frame is None or not (frame.items or frame.selections):
        return
    unused = _unused(output_graph.graph)
    try:
        found = that_may_raise(unused, is_read_back, range_of_count)
    except Exception as error:  # noqa: BLE001  # our error costs speed, never the program
        first = next(iter((frame.items | frame.selections).values()))
        kept = dict.fromkeys(unused, KeptScalar(*fault(error, first.file, first.line)))
    else:
        text = "what is made of it may raise, though nothing uses that: "
        kept = {
            node: KeptScalar(Reason.PARTIAL_OP, text + why, node) for node, why in found.items()
        }
    restart_without(frame, _behind(frame, kept))


def _behind(frame: Frame, kept: dict[fx.Node, KeptScalar]) -> dict[Captured, Why]:
    """What some numbers are made of that the program then reads where it asks for it."""
    items: dict[fx.Node, KeptScalar] = {}
    counts: dict[Captured, Why] = {}
    for node, why in kept.items():
        for item in made_of([node]) if FROM_ITEM in node.meta else ():
            if item in frame.items:
                items.setdefault(item, why)
        for symbol in unknown_sizes(node.meta.get("example_value")):
            root = selection_of(node.graph, symbol)
            if root in frame.selections:
                counts.setdefault(frame.selections[root], (why.code, why.text))
    return reasons(frame, items) | counts


def _unused(graph: fx.Graph) -> list[fx.Node]:
    """Numbers of which nothing is made that stays in the graph.

    What only a message shows is made when that is due, and not where the program makes it. What was
    traced for a message alone the program makes there, too.
    """
    found: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        if not _is_open(node) or is_message_only(node):
            continue
        if all(user in found or shows(user) for user in node.users):
            found[node] = None
    return [node for node in found if CANNOT_RAISE not in node.meta]


def _is_open(node: fx.Node) -> bool:
    """Whether a node is a number that is not known while the program is traced."""
    value = node.meta.get("example_value")
    number = node.op != "placeholder" and kind_of(value) is not None
    return FROM_ITEM in node.meta or (number and bool(unknown_sizes(value)))
