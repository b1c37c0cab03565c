"""A report as text: what was decided, the graph breaks that remain, the waits of the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fusepass.report.advice import advice_for
from fusepass.report.decision import Decision, Outcome, Station
from fusepass.report.host_syncs.result import Sync
from fusepass.report.paths import short_path

Place = tuple[str, int]
Break = dict[str, Any]

_COLUMNS = ("station", "rule", "decision", "reason")
_LEAST = (7, 15, 16, 15)  # widths of these columns, so that most tables look alike
_SHOWN = 6  # places of one decision; the rest is counted


def lines_of(
    decisions: Iterable[Decision], graph_breaks: Sequence[Break], syncs: Iterable[Sync] | None
) -> list[str]:
    """The lines of the text behind its heading.

    A reason is said once: what keeps a graph break stands among the breaks, not in the table.
    """
    decisions = list(decisions)
    said = [broken["reason"] for broken in graph_breaks]
    lines = _table(
        d
        for d in decisions
        if d.treatment != "keep" or not any(d.reason in broken for broken in said)
    )
    lines += _breaks(graph_breaks, decisions)
    if syncs:
        lines += ["", "the host still waits for the device:"]
        lines += [
            f"{row.remaining:>5}  {row.kind.value:<13}{short_path(row.file)}:{row.line}"
            for row in syncs
        ]
    return lines


def _table(decisions: Iterable[Decision]) -> list[str]:
    """Equal decisions as one row, with their count and places, and the sentence below it."""
    rows: dict[tuple[str, ...], list[Place]] = {}
    for decision in decisions:
        rows.setdefault(_row(decision), []).append((decision.file, decision.line))
    if not rows:
        return []
    columns = [[row[i] for row in rows] for i in range(len(_COLUMNS))]
    widths = [max(least, *map(len, c)) for least, c in zip(_LEAST, columns, strict=True)]

    def line(count: Any, row: Sequence[str], where: str) -> str:
        parts = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        return "  ".join([f"{count:>5}", *parts, where])

    lines = ["", line("count", _COLUMNS, "where")]
    for row, places in rows.items():
        lines += [line(len(places), row[:4], _shown(places)), f"{'':>7}{row[4]}"]
    return lines


def _row(decision: Decision) -> tuple[str, ...]:
    outcome = decision.outcome.value
    if decision.station in (Station.TRACE, Station.CAPTURE):
        outcome = decision.treatment if decision.outcome is Outcome.APPLIED else f"keep ({outcome})"
    station, code = decision.station.value, decision.reason_code.value
    return (station, decision.rule, outcome, code, decision.reason)


def _breaks(graph_breaks: Iterable[Break], decisions: Sequence[Decision]) -> list[str]:
    """The graph breaks by reason code, each reason with the number of its places."""
    found: dict[tuple[str, str], dict[str, list[Place]]] = {}
    for broken in graph_breaks:
        place = broken["file"], broken["line"]
        entry = _code_of(decisions, broken["reason"], place)
        found.setdefault(entry, {}).setdefault(broken["reason"], []).append(place)
    lines = ["", "graph breaks that remain:"] if found else []
    for (code, advice), reasons in found.items():
        lines.append(f"  {code}: {advice}" if advice else f"  {code}:")
        for reason, places in reasons.items():
            lines += [f"{len(places):>5}  {_shown(places)}", f"{'':>9}{reason}"]
    return lines


def _code_of(decisions: Iterable[Decision], reason: str, place: Place) -> tuple[str, str]:
    """The reason code of the decision that keeps a graph break, and what to do about it."""
    for decision in decisions:
        at = decision.file, decision.line
        if decision.treatment == "keep" and at == place and reason.endswith(decision.reason):
            return decision.reason_code.value, advice_for(decision)
    return "graph_break", ""


def _shown(places: Iterable[Place]) -> str:
    """Places by file, each once, ``model.py:3, 7; block.py:12``; the last of many left out."""
    distinct = list(dict.fromkeys(places))
    files: dict[str, list[str]] = {}
    for file, line in distinct[:_SHOWN]:
        files.setdefault(short_path(file), []).append(str(line))
    shown = "; ".join(
        f"{file}:{', '.join(lines)}" if file else "-" for file, lines in files.items()
    )
    more = len(distinct) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
