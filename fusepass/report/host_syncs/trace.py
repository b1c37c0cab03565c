"""Reads a profiler's trace: when the host waited for the device, in what, and how long.

Works on the events of a Chrome trace as ``torch.profiler`` exports it (times in microseconds), and
on nothing else, so that a trace can be kept, or written by hand.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MARK = "fusepass_mark:"  # begins the name of a range put around an operation; its number follows

CALL = "fusepass_call"  # the range around the call that is looked at

_SYNCHRONISES = frozenset(
    """
    cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cudaMemcpy cudaMemcpy2D
    cudaMemcpyToSymbol cudaMemcpyFromSymbol cudaMemset cuStreamSynchronize cuCtxSynchronize
    cuEventSynchronize cuMemcpyDtoH_v2 cuMemcpyHtoD_v2
    """.split()
)
_FREES = frozenset(("cudaFree", "cudaFreeHost"))
_COPIES = ("cudaMemcpyAsync", "cuMemcpyDtoHAsync_v2")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_ON_HOST = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True)
class HostWait:
    """One time the host waited.

    Attributes:
        call: the runtime's function (``cudaStreamSynchronize``).
        operation: the innermost operation of torch around it (``aten::nonzero``), ``""`` for none.
        mark: number of the innermost marked range around it; of the next mark on its thread, if it
            stands in none; None if there is none either.
        inside: whether it stands in that mark's range.
        direction: ``DtoH`` or ``HtoD`` where a copy is waited for, else ``""``.
        frees: whether the call gives memory back, for which the driver waits.
        start: when it began, in microseconds on the trace's clock.
        wait_us: how long the host was in it.
        idle_us: how long the device then stood idle, until what it was given next; None when
            it was given nothing more.
    """

    call: str
    operation: str
    mark: int | None
    inside: bool
    direction: str
    frees: bool
    start: float
    wait_us: float
    idle_us: float | None


def has_device(events: Iterable[dict[str, Any]]) -> bool:
    """Whether a trace holds anything of the CUDA runtime."""
    return any(event.get("cat") in _ON_HOST for event in events)


def host_waits(events: Sequence[dict[str, Any]]) -> list[HostWait]:
    """Every time the host waited for the device, in order.

    A copy that is followed by a wait for its stream, in one operation, is one wait. Copies from
    pageable memory that nothing waits for are none.

    Args:
        events: ``traceEvents`` of a Chrome trace; of one with a range ``CALL`` only what is in it.
    """
    spans = [event for event in events if event.get("ph") == "X" and "ts" in event]
    spans.sort(key=lambda event: (event["ts"], -float(event.get("dur", 0.0))))
    (begin, end) = next(((e["ts"], _end(e)) for e in spans if e["name"] == CALL), (None, None))
    copies = {_correlation(e): str(e["name"]) for e in spans if e.get("cat") == "gpu_memcpy"}
    timeline = _Timeline(spans)
    lanes: dict[Any, _Lane] = {}
    for event in spans:
        if str(event["name"]).startswith(MARK):
            lanes.setdefault(event.get("tid"), _Lane()).marks.append(event)
    found: list[HostWait] = []
    for event in spans:
        lane = lanes.setdefault(event.get("tid"), _Lane())
        if event.get("cat") in ("cpu_op", "user_annotation"):
            lane.enter(event)
        elif event.get("cat") in _ON_HOST and (begin is None or begin <= event["ts"] <= end):
            moved = _direction(copies.get(_correlation(event), ""))
            found += [_host_wait(*call, timeline) for call in lane.called(event, moved)]
    found += [_host_wait(*call, timeline) for lane in lanes.values() for call in lane.rest()]
    return sorted(found, key=lambda wait: wait.start)


@dataclass(frozen=True)
class _RuntimeCall:
    """A call of the runtime, and what it stands in."""

    event: dict[str, Any]
    operation: dict[str, Any] | None
    mark: dict[str, Any] | None
    inside: bool
    direction: str


class _Lane:
    """One thread: the operations that are open, and a copy whose wait may follow."""

    def __init__(self) -> None:
        self.marks: list[dict[str, Any]] = []
        self.open: list[dict[str, Any]] = []
        self.copy: _RuntimeCall | None = None

    def enter(self, event: dict[str, Any]) -> None:
        self.open = [outer for outer in self.open if _end(outer) > event["ts"]]
        self.open.append(event)

    def called(
        self, event: dict[str, Any], direction: str
    ) -> list[tuple[_RuntimeCall, _RuntimeCall]]:
        """Waits that are known with this call: the first and the last call of each."""
        name = _name(event)
        if name not in _COPIES and name not in _SYNCHRONISES and name not in _FREES:
            return []
        call = self._call(event, direction)
        before, self.copy = self.copy, None
        if name in _COPIES:
            self.copy = call
        elif before is not None and before.operation is call.operation and name in _SYNCHRONISES:
            return [(before, call)]
        return [*_by_itself(before), *([] if name in _COPIES else [(call, call)])]

    def rest(self) -> list[tuple[_RuntimeCall, _RuntimeCall]]:
        """A last copy that nothing waits for."""
        return _by_itself(self.copy)

    def _call(self, event: dict[str, Any], direction: str) -> _RuntimeCall:
        self.open = [outer for outer in self.open if _end(outer) > event["ts"]]
        marks = [span for span in self.open if str(span["name"]).startswith(MARK)]
        others = [span for span in self.open if not str(span["name"]).startswith((MARK, CALL))]
        mark = marks[-1] if marks else None
        if mark is None:
            at = bisect.bisect_left(self.marks, event["ts"], key=lambda span: span["ts"])
            mark = self.marks[at] if at < len(self.marks) else None
        return _RuntimeCall(event, others[-1] if others else None, mark, bool(marks), direction)


def _by_itself(copy: _RuntimeCall | None) -> list[tuple[_RuntimeCall, _RuntimeCall]]:
    """A copy that nothing waits for: one to pageable memory waits by itself."""
    return [(copy, copy)] if copy is not None and copy.direction == "DtoH pageable" else []


class _Timeline:
    """What the device did, on all of its streams."""

    def __init__(self, spans: Sequence[dict[str, Any]]) -> None:
        work = [event for event in spans if event.get("cat") in _ON_DEVICE]
        self.starts = [float(event["ts"]) for event in work]
        self.ends: list[float] = []  # when all that began so far was done
        for event in work:
            end = _end(event)
            self.ends.append(max(end, self.ends[-1]) if self.ends else end)
        self.told: set[int] = set()

    def idle_after(self, time: float) -> float | None:
        """How long the device had nothing to do until it was given something after ``time``.

        A gap counts for the first wait in front of it only.
        """
        following = bisect.bisect_left(self.starts, time)
        if following == len(self.starts):
            return None
        if following in self.told:
            return 0.0
        self.told.add(following)
        before = self.ends[following - 1] if following else time
        return max(0.0, self.starts[following] - before)


def _host_wait(first: _RuntimeCall, last: _RuntimeCall, timeline: _Timeline) -> HostWait:
    name = _name(last.event)
    calls = (last,) if first is last else (first, last)
    spent = sum(float(call.event.get("dur", 0.0)) for call in calls)
    operation = "" if last.operation is None else str(last.operation["name"])
    mark = None if last.mark is None else int(str(last.mark["name"])[len(MARK) :])
    return HostWait(
        name,
        operation,
        mark,
        last.inside,
        first.direction or last.direction,
        name in _FREES,
        float(first.event["ts"]),
        spent,
        timeline.idle_after(_end(last.event)),
    )


def _name(event: dict[str, Any]) -> str:
    name = str(event["name"])
    return f"cuda{name[3:]}" if name.startswith("hip") else name


def _direction(name: str) -> str:
    """``DtoH``, ``HtoD`` or ``""``, with ``pageable`` behind it for ordinary memory."""
    for way in ("DtoH", "HtoD"):
        if way in name:
            return f"{way} pageable" if "Pageable" in name else way
    return ""


def _correlation(event: dict[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"]) + float(event.get("dur", 0.0))
