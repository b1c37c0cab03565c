"""The report a user reads: facts of one compile as text and as JSON."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass, field
from typing import Any

import torch

from fusepass.report.decision import Decision, Station
from fusepass.report.host_syncs.result import Sync
from fusepass.report.log import CompileLog
from fusepass.report.report_text import lines_of
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
        operations = ", ".join(map(str, self.operations)) or "none"
        regions = self.regions_per_call
        entered = "not counted (fusepass.explain does)" if regions is None else regions
        lines = [
            f"fusepass report: {self.graphs} graph(s), operations per graph: {operations}",
            f"regions entered per call: {entered}; graph breaks: {len(self.graph_breaks)}",
        ]
        if self.raised:
            lines.append(f"the call raised {self.raised}: this is what happened before")
        return "\n".join([*lines, *lines_of(self.decisions, self.graph_breaks, self.syncs)])


def report_of(log: CompileLog, regions: int | None = None) -> Report:
    """Assemble a report from what is on record."""
    decisions = [_with_helpers(d, log) for graph in log.graphs for d in graph.decisions]
    decisions += [_with_helpers(d, log, position) for position, d in log.kept.items()]
    return Report(
        tuple(graph.operations for graph in log.graphs),
        tuple(_breaks(log, decisions)),
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


def _breaks(log: CompileLog, decisions: list[Decision]) -> list[dict[str, Any]]:
    """The graph breaks, with the reason of the decision that keeps one."""
    kept: dict[tuple[str, int], list[str]] = {}
    for decision in decisions:
        if decision.treatment == "keep":
            begins = f"{_KEPT[decision.rule]}: " if decision.rule in _KEPT else ""
            place = (decision.file, decision.line)
            kept.setdefault(place, []).append(f"{begins}{decision.reason}")
    found: dict[tuple[str, str, int], None] = {}
    for reason, file, line in log.breaks:
        found |= dict.fromkeys((said, file, line) for said in kept.get((file, line)) or [reason])
    return [{"reason": r, "file": f, "line": n} for r, f, n in found]


def _with_helpers(decision: Decision, log: CompileLog, position: tuple[Any, ...] = ()) -> Decision:
    """A decision, with the library function that its line calls and that it is about.

    ``position`` begins with file and line of what was decided; it is empty if that is not known.
    """
    helpers = log.inside.get((decision.file, decision.line))
    if decision.station not in (Station.TRACE, Station.CAPTURE) or not helpers:
        return decision
    if position:
        known = helpers.get(position[:2])
        names = [] if known is None else [known]
    else:
        names = [*helpers.values()]
    told = f" [in {', '.join(names)}]" if names else ""
    return dataclasses.replace(decision, reason=f"{decision.reason}{told}")


def versions() -> dict[str, str]:
    """Versions of everything that can change a result."""
    found = {
        "fusepass": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    found["cuda"] = str(torch.version.cuda or "none")
    return found
