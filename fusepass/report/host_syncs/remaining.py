"""The waits left in the one call that ``explain`` makes, without a look at eager mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from fusepass.report.decision import Decision, Outcome
from fusepass.report.host_syncs import residence
from fusepass.report.host_syncs.compiled import ENTERED, inside, outside
from fusepass.report.host_syncs.join import grouped, is_read_late, row_of
from fusepass.report.host_syncs.observe import Wait, Watch
from fusepass.report.host_syncs.place import ProgramPlace
from fusepass.report.host_syncs.result import Sync
from fusepass.report.log import GraphRecord


def looking() -> Watch:
    """A watch for a compiled call: of operations alone, without the profiler."""
    as_if = residence.AsIf(unknown=True) if residence.no_device() else None
    return Watch(ENTERED, as_if)


def left(
    waits: Iterable[Wait], entries: Iterable[GraphRecord], decisions: Iterable[Decision]
) -> tuple[Sync, ...]:
    """Rows for what was seen between the graphs, and for what waits in those that were entered."""
    late = [d for d in decisions if d.outcome is Outcome.APPLIED and is_read_late(d)]
    seen = [_placed(wait, late) for wait in outside(waits)]
    seen += [
        Wait(wait.kind, wait.operation, ProgramPlace(wait.file, wait.line), wait.times)
        for wait in inside(entries)
    ]
    rows = grouped(seen)
    counts = Counter({key: row.count for key, row in rows.items()})
    return tuple(row_of(key, row, counts, decisions) for key, row in rows.items())


def _placed(wait: Wait, late: list[Decision]) -> Wait:
    """A number read behind a graph, at the line it is read for.

    Code that Dynamo puts there has the first line of its function, fusepass's none of the program.
    """
    place = wait.place
    first = place.code is not None and place.line == place.code.co_firstlineno
    for decision in late if place.emitted or first else ():
        if decision.file == place.file and decision.line >= place.line:
            late.remove(decision)
            return replace(wait, place=replace(place, line=decision.line))
    return wait
