"""The report a user reads: facts of one compile as text and as JSON."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusepass.report.decision import Decision, Outcome, Station
from fusepass.report.host_syncs.result import Sync
from fusepass.report.log import CompileLog
from fusepass.report.short_path import short_path
from fusepass.report.version import VERSION


@dataclass(frozen=True)
class Report:
    """What fusepass did, what it did not, and why.

    Attributes:
        operations: calls in each compiled graph, in the order they were compiled.
        graph_breaks: ``{"reason", "file", "line"}`` of each remaining break.
        regions_per_call: compiled graphs entered by one call; None where nobody counted and it
            may be several, as in the report of ``last_report`` where graphs break.
        decisions: every site looked at.
        syncs: places where the host still waits for the device in the call that was explained;
            None where no call was watched. :func:`fusepass.syncs` compares with eager mode.
        raised: class and text of what the call raised that was explained, ``""`` if nothing.
    """

    operations: tuple[int, ...]
    graph_breaks: tuple[dict[str, Any], ...]
    regions_per_call: int | None
    decisions: tuple[Decision, ...]
    versions: dict[str, str] = field(default_factory=dict)
    syncs: tuple[Sync, ...] | None = field(default=None, compare=False)
    raised: str = ""

    @property
    def graphs(self) -> int:
        """How many graphs were compiled."""
        return len(self.operations)

    def to_dict(self) -> dict[str, Any]:
        """JSON form; the schema is in docs/report.md."""
        return {
            "graphs": self.graphs,
            "operations": list(self.operations),
            "graph_breaks": [dict(b) for b in self.graph_breaks],
            "regions_per_call": self.regions_per_call,
            "decisions": [d.to_dict() for d in self.decisions],
            "syncs": None if self.syncs is None else [row.to_dict() for row in self.syncs],
            "raised": self.raised,
            "versions": dict(self.versions),
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def report_of(log: CompileLog, regions: int | None = None) -> Report:
    """Assemble a report from what is on record."""
    decisions = [d for graph in log.graphs for d in graph.decisions] + list(log.kept.values())
    return Report(
        tuple(graph.operations for graph in log.graphs),
        tuple(_breaks(log)),
        _regions_known(log) if regions is None else regions,
        tuple(decisions),
        versions(),
    )


def _regions_known(log: CompileLog) -> int | None:
    """How many compiled graphs a call enters, where that needs no counting."""
    pieces = len({graph.code for graph in log.graphs})
    return pieces if pieces < 2 and not log.breaks else None


_KEPT = {
    "branch": "the branch is kept",
    "item": "the number is read there",
    "masked": "what the mask selects is counted there",
    "print": "the line is written there",
}


def _breaks(log: CompileLog) -> list[dict[str, Any]]:
    """The graph breaks, with the reason of capture where it decided to keep one."""
    kept: dict[tuple[str, int], list[Decision]] = {}
    for decision in log.kept.values():
        kept.setdefault((decision.file, decision.line), []).append(decision)
    found: dict[tuple[str, str, int], None] = {}
    for reason, file, line in log.breaks:
        ours = [f"{_KEPT.get(d.rule, d.rule)}: {d.reason}" for d in kept.get((file, line), ())]
        found |= dict.fromkeys((said, file, line) for said in ours or [reason])
    return [{"reason": r, "file": f, "line": n} for r, f, n in found]


def versions() -> dict[str, str]:
    """Versions of everything that can change a result."""
    found = {
        "fusepass": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    found["cuda"] = str(torch.version.cuda or "none")
    return found


def _lines(report: Report) -> list[str]:
    operations = ", ".join(map(str, report.operations)) or "none"
    regions = report.regions_per_call
    entered = "not counted (fusepass.explain does)" if regions is None else regions
    lines = [
        f"fusepass report: {report.graphs} graph(s), operations per graph: {operations}",
        f"regions entered per call: {entered}; graph breaks: {len(report.graph_breaks)}",
    ]
    if report.raised:
        lines.append(f"the call raised {report.raised}: this is what happened before")
    lines += _table(Counter(_row(d) for d in report.decisions))
    if report.graph_breaks:
        lines += ["", "graph breaks:"]
        lines += [
            f"  {short_path(b['file'])}:{b['line']}  {b['reason']}" for b in report.graph_breaks
        ]
    if report.syncs:
        lines += ["", "the host still waits for the device:"]
        lines += [
            f"{row.remaining:>5}  {row.kind.value:<13}{short_path(row.file)}:{row.line}"
            for row in report.syncs
        ]
    return lines


_COLUMNS = ("station", "rule", "decision", "reason")
_LEAST = (7, 15, 16, 15)  # widths of these columns, so that most tables look alike


def _table(rows: Counter[tuple[str, str, str, str, str, str]]) -> list[str]:
    """Equal decisions as one row, with their count, and the sentence of each below it."""
    if not rows:
        return []
    columns = [[row[i] for row in rows] for i in range(len(_COLUMNS))]
    widths = [max(least, *map(len, c)) for least, c in zip(_LEAST, columns, strict=True)]

    def line(count: Any, row: Sequence[str], where: str) -> str:
        parts = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        return "  ".join([f"{count:>5}", *parts, where])

    lines = ["", line("count", _COLUMNS, "where")]
    for row, count in rows.items():
        lines += [line(count, row[:4], row[4]), f"{'':>7}{row[5]}"]
    return lines


def _row(decision: Decision) -> tuple[str, str, str, str, str, str]:
    outcome = decision.outcome.value
    if decision.station in (Station.TRACE, Station.CAPTURE):
        outcome = decision.treatment if decision.outcome is Outcome.APPLIED else f"keep ({outcome})"
    where = f"{short_path(decision.file)}:{decision.line}" if decision.file else "-"
    return (
        decision.station.value,
        decision.rule,
        outcome,
        decision.reason_code.value,
        where,
        decision.reason,
    )
