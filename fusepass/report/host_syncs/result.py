"""The list a user reads: one row per place and kind, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.paths import short_path


@dataclass(frozen=True)
class Sync:
    """One place where the host waits for the device.

    Attributes:
        kind: why; a member of :class:`fusepass.report.host_syncs.kinds.Kind`.
        file: source file of the innermost line outside torch, ``""`` when unknown.
        line: line in ``file``, 0 when unknown.
        operations: what of torch waits there (``aten.nonzero``, ``Tensor.tolist``).
        count: how often the host waits there in one call, before fusepass.
        remaining: how often compiled with fusepass.
        removed: whether fusepass removed all of them; None where this machine cannot tell.
        caller_file, caller_line: the line of the program's outermost function that led there.
        treatment: what fusepass did (``where``, ``drop``, ``cond``, ``sink``, ``device``,
            ``late``, ``keep``), ``""`` where it looked at nothing.
        reason_code: a :class:`fusepass.Reason`, ``""`` where there is no decision.
        reason: fusepass's reason as a sentence.
        instead: what could be written instead, in a sentence; ``""`` where it is removed.
        wait_us: microseconds the host waited there in one call, None where not measured.
        idle_us: microseconds the device then stood idle, None where not measured.
    """

    kind: Kind
    file: str
    line: int
    operations: tuple[str, ...]
    count: int
    remaining: int
    removed: bool | None
    caller_file: str = ""
    caller_line: int = 0
    treatment: str = ""
    reason_code: str = ""
    reason: str = ""
    instead: str = ""
    wait_us: float | None = None
    idle_us: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON form; the schema is in docs/syncs.md."""
        return {**asdict(self), "kind": self.kind.value, "operations": list(self.operations)}


@dataclass(frozen=True)
class Syncs:
    """Every host synchronisation of one call. Empty (false) when there is none.

    Attributes:
        rows: in the order they were first met.
        program: name of what was called.
        device: what was watched: a device's name, or that the CPU stood in for one.
        before: how the program ran that ``count`` is about: ``eager``, or the name of the backend
            it was compiled with, where that is not fusepass.
        compiled: whether it came compiled with fusepass, so that ``remaining`` is about it.
    """

    rows: tuple[Sync, ...]
    program: str = ""
    device: str = ""
    before: str = "eager"
    compiled: bool = False

    @property
    def remaining(self) -> tuple[Sync, ...]:
        """Rows that fusepass does not remove, or not altogether."""
        return tuple(row for row in self.rows if row.remaining)

    def __iter__(self) -> Iterator[Sync]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sync:
        return self.rows[index]

    def to_dict(self) -> dict[str, Any]:
        """JSON form; the schema is in docs/syncs.md."""
        return {
            "program": self.program,
            "device": self.device,
            "before": self.before,
            "compiled": self.compiled,
            "syncs": [row.to_dict() for row in self.rows],
        }

    def to_json(self) -> str:
        """:meth:`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        if not self.rows:
            return f"host synchronisations of {self.program}: none ({self.device})"
        count, left = sum(r.count for r in self.rows), sum(r.remaining for r in self.rows)
        places = len({(row.file, row.line) for row in self.rows if row.count})
        head = (
            f"host synchronisations of {self.program}: {count} {self.before} in {places} "
            f"place(s), {left} with fusepass ({self.device})"
        )
        return "\n".join([head, "", *table(self.rows)])


def table(rows: tuple[Sync, ...]) -> list[str]:
    """Lines of the table of rows, each with what to do below it."""
    timed = any(row.wait_us is not None for row in rows)
    times = f"{'wait µs':>9}{'idle µs':>9}" if timed else ""
    lines = [f"{'before':>6}{'left':>6}{times}  {'kind':<13}{'fusepass':<18}where"]
    for row in rows:
        spent = ""
        if timed:
            spent = "".join(f"{_number(value):>9}" for value in (row.wait_us, row.idle_us))
        place = f"{short_path(row.file)}:{row.line}" if row.file else "unknown"
        called = (row.caller_file, row.caller_line)
        if row.caller_file and called != (row.file, row.line):
            place += f"  (from {short_path(row.caller_file)}:{row.caller_line})"
        lines.append(
            f"{row.count:>6}{row.remaining:>6}{spent}  {row.kind.value:<13}{done(row):<18}{place}"
        )
        lines += [f"{'':>14}{text}" for text in (row.reason, row.instead) if text]
    return lines


def done(row: Sync) -> str:
    """What fusepass did about a row, in a word or two."""
    if row.removed:
        return f"removed: {row.treatment}" if row.treatment else "removed"
    if row.removed is None:
        return "not known here"
    if row.treatment and row.treatment != "keep":
        return f"left: {row.treatment}"
    return "left"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
