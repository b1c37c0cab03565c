"""Check in the complete graph whether what arms change outside may be applied behind the graph.

What eager has changed stays changed when a later operation fails. A graph that fails leaves
everything as it was, so a branch with such an arm is kept in front of an operation that may fail.
"""

from __future__ import annotations

from torch import fx

from fusepass.capture.effects.event_legality import why_not_before
from fusepass.capture.frame_state import Frame
from fusepass.capture.restarts import Why


def unsafe_changes(graph: fx.Graph, frame: Frame) -> dict[int, Why]:
    """Sites whose arms change something that could not be applied in time."""
    changing = {site.changes: site for site in frame.sites if site.changes is not None}
    lost: dict[int, Why] = {}
    behind: list[fx.Node] = []
    why: Why | None = None
    for node in reversed(graph.nodes) if changing else ():
        if node in changing:
            why = why_not_before(behind) or why
            behind.clear()
            if why is not None:
                lost[changing[node].branch.site] = why
        behind.append(node)
    return lost
