"""Puts together what was seen of a program before fusepass, with it, and what fusepass reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusepass.report.decision import Decision, Outcome
from fusepass.report.host_syncs.advice import advice
from fusepass.report.host_syncs.compiled import ENTERED, CompiledCall, every_wait
from fusepass.report.host_syncs.kinds import READ, Kind
from fusepass.report.host_syncs.observe import Wait, Watch
from fusepass.report.host_syncs.place import ProgramPlace
from fusepass.report.host_syncs.residence import AsIf, no_device
from fusepass.report.host_syncs.result import Sync
from fusepass.report.log import GraphRecord

Key = tuple[str, int, Kind]
# Which of fusepass's rules treat a kind; other decisions at the line come after these.
_RULES = {
    Kind.BRANCH: ("branch", "sink", "item"),
    Kind.ITEM: ("item", "branch", "sink"),
    Kind.PRINT: ("print", "item", "sink"),
    Kind.COPY_IN: ("host_tensor",),
    Kind.COPY_OUT: ("item", "print"),
    Kind.NONZERO: ("masked", "branch"),
    Kind.SIZE: ("masked",),
}


@dataclass
class JoinedRow:
    """What is known of one row before it is held against a compiled call."""

    count: int = 0
    operations: dict[str, None] = field(default_factory=dict)
    caller: ProgramPlace = field(default_factory=ProgramPlace)
    hidden: int = 0  # of the count, what a watched compiled call cannot see
    wait_us: float | None = None
    idle_us: float | None = None


def rows_of(before: Iterable[Wait], compiled: CompiledCall | None) -> tuple[Sync, ...]:
    """Rows of the list; without a compiled call all that was seen before remains."""
    rows = grouped(before)
    if compiled is None:
        everything = {key: row.count for key, row in rows.items()}
        return tuple(row_of(key, row, everything, ()) for key, row in rows.items())
    left = _left(compiled)
    decisions = compiled.decisions
    _place_reads(left, rows, decisions)
    made = [row_of(key, row, left, decisions) for key, row in rows.items()]
    behind = [wait for wait in compiled.waits if wait.kind is Kind.READ_BACK]
    for key, row in grouped(behind).items():
        made.append(row_of(key, JoinedRow(0, row.operations, row.caller), {key: row.count}, ()))
    return tuple(made)


def looking() -> Watch:
    """A watch for a compiled call: of operations alone, without the profiler."""
    return Watch(ENTERED, AsIf(unknown=True) if no_device() else None)


def left(
    seen: Iterable[Wait], entries: Iterable[GraphRecord], decisions: Sequence[Decision]
) -> tuple[Sync, ...]:
    """Rows for the waits left in a compiled call, without a look at eager mode."""
    late = [d for d in decisions if d.outcome is Outcome.APPLIED and _is_read_late(d)]
    rows = grouped(_placed(wait, late) for wait in every_wait(seen, entries))
    counts = {key: row.count for key, row in rows.items()}
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


def _is_read_late(decision: Decision) -> bool:
    """Whether a number is read behind the graph, where the host waits for it all the same."""
    return decision.rule in ("item", "masked") and decision.treatment == "late"


def grouped(waits: Iterable[Wait]) -> dict[Key, JoinedRow]:
    """Waits by place and kind, in the order they were first met."""
    rows: dict[Key, JoinedRow] = {}
    for wait in waits:
        row = rows.setdefault((wait.place.file, wait.place.line, wait.kind), JoinedRow())
        if not row.count:
            row.caller = wait.place
        row.count += wait.times
        row.hidden += wait.times * wait.hidden
        row.operations[wait.operation] = None
        row.wait_us = _sum(row.wait_us, wait.wait_us)
        row.idle_us = _sum(row.idle_us, wait.idle_us)
    return rows


def _sum(left: float | None, right: float | None) -> float | None:
    return right if left is None else left + (right or 0.0)


def _left(compiled: CompiledCall) -> Counter[Key]:
    """How often the host still waits, by place and kind."""
    left: Counter[Key] = Counter()
    for wait in compiled.waits:
        if wait.kind is not Kind.READ_BACK:
            left[wait.place.file, wait.place.line, wait.kind] += wait.times
    return left


def _place_reads(
    left: Counter[Key], rows: dict[Key, JoinedRow], decisions: Iterable[Decision]
) -> None:
    """Numbers read where the program reads none: Dynamo reads them behind a graph.

    They may stand for any place that seems to be gone and that nothing of ours took away.
    """
    places = {(file, line) for file, line, _ in rows}
    unplaced = sum(n for (f, k, kind), n in left.items() if kind in READ and (f, k) not in places)
    for key, row in rows.items():
        file, line, kind = key
        here = [d for d in decisions if (d.file, d.line) == (file, line)]
        seen = any(left.get((file, line, one)) for one in READ)
        if kind in READ and not seen and _decision(here, kind, acted=True) is None:
            taken = min(unplaced, row.count - row.hidden)
            left[key] += taken
            unplaced -= taken


def row_of(
    key: Key, row: JoinedRow, left: Mapping[Key, int], decisions: Iterable[Decision]
) -> Sync:
    """A row of the list; ``left`` has the waits that remain, by place and kind."""
    file, line, kind = key
    here = [d for d in decisions if (d.file, d.line) == (file, line)]
    applied, rejected = _decision(here, kind, acted=True), _decision(here, kind, acted=False)
    remaining = _remaining(key, row, left, applied)
    removed: bool | None = remaining == 0
    decision = applied if removed else rejected or applied
    if row.hidden and decision is None and kind in (Kind.COPY_IN, Kind.COPY_OUT):
        removed = None  # there is no copy on this machine that a rule could look at
    reason = "" if decision is None else decision.reason
    if removed and decision is None:
        reason = "the compiled program does not wait here"
    operations = tuple(row.operations)
    return Sync(
        kind,
        file,
        line,
        operations,
        row.count,
        remaining,
        removed,
        row.caller.caller_file,
        row.caller.caller_line,
        "" if decision is None else decision.treatment,
        "" if decision is None else decision.reason_code.value,
        reason,
        "" if removed else advice(kind, operations),
        row.wait_us,
        row.idle_us,
    )


def _remaining(key: Key, row: JoinedRow, left: Mapping[Key, int], applied: Decision | None) -> int:
    """Waits left at a place: at most those there were, unless fusepass brought them."""
    file, line, kind = key
    if kind is Kind.READ_BACK:
        return left.get(key, 0)
    if applied is not None and _is_read_late(applied):
        return row.count
    kinds = READ if kind in READ else (kind,)
    seen = sum(left.get((file, line, one), 0) for one in kinds)
    if row.hidden and applied is None:
        seen += row.hidden
    return min(seen, row.count)


def _decision(found: list[Decision], kind: Kind, *, acted: bool) -> Decision | None:
    """The first decision about a kind that acted, or that did not."""
    rules = _RULES.get(kind, ())
    ranked = sorted(
        (d for d in found if d.rule in rules and (d.outcome is Outcome.APPLIED) == acted),
        key=lambda d: rules.index(d.rule),
    )
    return ranked[0] if ranked else None
