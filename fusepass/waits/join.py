"""Puts together what was seen of a program before fusepass, with it, and what fusepass reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from fusepass.report.decision import Decision, Outcome, Station
from fusepass.waits.advice import advice
from fusepass.waits.compiled import CompiledCall
from fusepass.waits.kinds import READ, Kind
from fusepass.waits.observe import Wait
from fusepass.waits.place import Place
from fusepass.waits.result import Sync

Key = tuple[str, int, Kind]
# Which of fusepass's rules treat a kind; other decisions at the line come after these.
_RULES = {
    Kind.BRANCH: ("branch", "sink", "item"),
    Kind.ITEM: ("item", "branch", "sink"),
    Kind.PRINT: ("print", "sink"),
    Kind.COPY_IN: ("host_tensor",),
    Kind.NONZERO: ("masked", "branch"),
    Kind.SIZE: ("masked",),
}
_TREATED = ("branch", "sink", "item", "print", "masked", "host_tensor")


@dataclass
class _Row:
    count: int = 0
    operations: dict[str, None] = field(default_factory=dict)
    caller: Place = field(default_factory=Place)
    hidden: int = 0  # of the count, what a watched compiled call cannot see
    wait_us: float | None = None
    idle_us: float | None = None


def rows_of(before: Iterable[Wait], compiled: CompiledCall | None) -> tuple[Sync, ...]:
    """Rows of the list.

    Args:
        before: waits of the program as it ran in eager mode.
        compiled: the same call compiled; None where it was not, and all remains.
    """
    rows = _grouped(before)
    if compiled is None:
        everything = Counter({key: row.count for key, row in rows.items()})
        return tuple(_sync(key, row, everything, {}) for key, row in rows.items())
    left = _left(compiled)
    decisions = _by_line(compiled.decisions)
    made = [_sync(key, row, left, decisions) for key, row in rows.items()]
    for key, row in _grouped(w for w in compiled.waits if w.place.emitted).items():
        emitted = _Row(0, row.operations, row.caller)
        made.append(_sync((*key[:2], Kind.READ_BACK), emitted, {key: row.count}, decisions))
    return tuple(made)


def _grouped(waits: Iterable[Wait]) -> dict[Key, _Row]:
    rows: dict[Key, _Row] = {}
    for wait in waits:
        row = rows.setdefault((wait.place.file, wait.place.line, wait.kind), _Row())
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
        if not wait.place.emitted and wait.place.graph is None:
            left[wait.place.file, wait.place.line, wait.kind] += wait.times
    for inside in compiled.in_graphs:
        left[inside.file, inside.line, inside.kind] += inside.times
    return left


def _by_line(decisions: Iterable[Decision]) -> dict[tuple[str, int], list[Decision]]:
    found: dict[tuple[str, int], list[Decision]] = {}
    for decision in decisions:
        if decision.rule in _TREATED or decision.station is Station.CAPTURE:
            found.setdefault((decision.file, decision.line), []).append(decision)
    return found


def _sync(
    key: Key,
    row: _Row,
    left: Counter[Key] | dict[Key, int],
    decisions: dict[tuple[str, int], list[Decision]],
) -> Sync:
    file, line, kind = key
    decision = _decision(decisions.get((file, line), []), kind)
    remaining = _remaining(key, row, left, decision)
    removed: bool | None = remaining == 0
    if row.hidden and decision is None and kind in (Kind.COPY_IN, Kind.COPY_OUT):
        removed = None  # there is no copy on this machine that a rule could look at
    acted = decision is not None and decision.outcome is Outcome.APPLIED
    if decision is not None and acted != removed and not (acted and decision.treatment):
        decision = decision if not removed else None
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
        "" if decision is None else decision.reason,
        "" if removed else advice(kind, operations),
        row.wait_us,
        row.idle_us,
    )


def _remaining(
    key: Key, row: _Row, left: Counter[Key] | dict[Key, int], decision: Decision | None
) -> int:
    """Waits left at a place, at most those there were, unless fusepass brought them."""
    file, line, kind = key
    kinds = READ if kind in READ else (kind,)
    seen = sum(left.get((file, line, one), 0) for one in kinds)
    if kind is Kind.READ_BACK:
        return sum(left.values())
    treated = decision is not None and decision.outcome is Outcome.APPLIED
    if row.hidden and not treated:
        seen += row.hidden
    return min(seen, row.count)


def _decision(found: list[Decision], kind: Kind) -> Decision | None:
    """The decision about a kind at a line: what acted before what did not."""
    rules = _RULES.get(kind, ())
    ranked = sorted(
        (d for d in found if d.rule in rules),
        key=lambda d: (d.outcome is not Outcome.APPLIED, rules.index(d.rule)),
    )
    return ranked[0] if ranked else None
