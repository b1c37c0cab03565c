"""The report a user reads: facts of one compile as text and as JSON."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fusepass.report.decision import Decision, Outcome, Station
from fusepass.report.log import CompileLog
from fusepass.waits.result import Sync


@dataclass(frozen=True)
class Report:
    """What fusepass did, what it did not, and why.

    Attributes:
        operations: calls in each compiled graph, in the order they were compiled.
        graph_breaks: ``{"reason", "file", "line"}`` of each remaining break.
        regions_per_call: compiled graphs entered by one call; where it was not counted, the
            pieces of code compiled, each once however often it was recompiled.
        decisions: every site looked at.
        syncs: places where the host still waits for the device in the call that was explained;
            None where no call was watched. :func:`fusepass.syncs` compares with eager mode.
    """

    operations: tuple[int, ...]
    graph_breaks: tuple[dict[str, Any], ...]
    regions_per_call: int
    decisions: tuple[Decision, ...]
    versions: dict[str, str] = field(default_factory=dict)
    syncs: tuple[Sync, ...] | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON form; the schema is in docs/report.md."""
        return {
            "graphs": len(self.operations),
            "operations": list(self.operations),
            "graph_breaks": [dict(b) for b in self.graph_breaks],
            "regions_per_call": self.regions_per_call,
            "decisions": [d.to_dict() for d in self.decisions],
            "syncs": None if self.syncs is None else [row.to_dict() for row in self.syncs],
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
        len({graph.code for graph in log.graphs}) if regions is None else regions,
        tuple(decisions),
        versions(),
    )


_KEPT = {
    "branch": "the branch is kept",
    "item": "the number is read there",
    "masked": "what the mask selects is counted there",
    "print": "the line is written there",
}


def _breaks(log: CompileLog) -> list[dict[str, Any]]:
    """The graph breaks; where capture has decided to keep one, its reason says more than torch's."""
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
    import fusepass

    found = {
        "fusepass": fusepass.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    found["cuda"] = str(torch.version.cuda or "none")
    return found


def _lines(report: Report) -> list[str]:
    operations = ", ".join(map(str, report.operations)) or "none"
    lines = [
        f"fusepass report: {len(report.operations)} graph(s), operations per graph: {operations}",
        (
            f"regions entered per call: {report.regions_per_call}; "
            f"graph breaks: {len(report.graph_breaks)}"
        ),
    ]
    rows = Counter(_row(d) for d in report.decisions)
    if rows:
        lines += [
            "",
            f"{'count':>5}  {'station':<9}{'rule':<17}{'decision':<18}{'reason':<17}where",
        ]
    for (station, rule, decision, code, where, text), count in rows.items():
        lines.append(f"{count:>5}  {station:<9}{rule:<17}{decision:<18}{code:<17}{where}")
        lines.append(f"{'':>7}{text}")
    if report.graph_breaks:
        lines += ["", "graph breaks:"]
        lines += [f"  {_short(b['file'])}:{b['line']}  {b['reason']}" for b in report.graph_breaks]
    if report.syncs:
        lines += ["", "the host still waits for the device:"]
        lines += [
            f"{row.remaining:>5}  {row.kind.value:<13}{_short(row.file)}:{row.line}"
            for row in report.syncs
        ]
    return lines


def _row(decision: Decision) -> tuple[str, str, str, str, str, str]:
    outcome = decision.outcome.value
    if decision.station is Station.CAPTURE:
        outcome = decision.treatment if decision.outcome is Outcome.APPLIED else f"keep ({outcome})"
    where = f"{_short(decision.file)}:{decision.line}" if decision.file else "-"
    return (
        decision.station.value,
        decision.rule,
        outcome,
        decision.reason_code.value,
        where,
        decision.reason,
    )


def _short(path: str) -> str:
    """The last three parts of a path: enough to find a file, short enough for a table."""
    return str(Path(*Path(path).parts[-3:])) if path else ""
