"""Reads a profiler's trace: when the host waited for the device, in what, and how long.

Works on the events of a Chrome trace as ``torch.profiler`` exports it (times in microseconds), and
on nothing else, so that a trace can be kept, or written by hand.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
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
_COPIES = frozenset(("cudaMemcpyAsync", "cuMemcpyDtoHAsync_v2"))
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
    marks: dict[Any, list[dict[str, Any]]] = {}  # by thread
    for event in spans:
        if str(event["name"]).startswith(MARK):
            marks.setdefault(event.get("tid"), []).append(event)
    opened: dict[Any, list[dict[str, Any]]] = {}
    calls: dict[Any, list[_RuntimeCall]] = {}
    for event in spans:
        thread, kind = event.get("tid"), event.get("cat")
        around = [outer for outer in opened.get(thread, ()) if _end(outer) > event["ts"]]
        opened[thread] = around
        if kind in ("cpu_op", "user_annotation"):
            around.append(event)
        elif kind not in _ON_HOST or _name(event) not in _SYNCHRONISES | _FREES | _COPIES:
            continue
        elif begin is None or begin <= event["ts"] <= end:
            moved = _direction(copies.get(_correlation(event), ""))
            call = _runtime_call(event, around, marks.get(thread, []), moved)
            calls.setdefault(thread, []).append(call)
    waits = [pair for made in calls.values() for pair in _joined(made)]
    waits.sort(key=lambda pair: pair[0].event["ts"])
    timeline = _Timeline(spans)
    return [_host_wait(*pair, timeline) for pair in waits]


@dataclass(frozen=True)
class _RuntimeCall:
    """A call of the runtime, and what it stands in."""

    event: dict[str, Any]
    operation: dict[str, Any] | None
    mark: dict[str, Any] | None
    inside: bool
    direction: str


def _runtime_call(
    event: dict[str, Any],
    around: Sequence[dict[str, Any]],
    marks: Sequence[dict[str, Any]],
    direction: str,
) -> _RuntimeCall:
    inner = [span for span in around if str(span["name"]).startswith(MARK)]
    others = [span for span in around if not str(span["name"]).startswith((MARK, CALL))]
    mark = inner[-1] if inner else None
    if mark is None:
        at = bisect.bisect_left(marks, event["ts"], key=lambda span: span["ts"])
        mark = marks[at] if at < len(marks) else None
    return _RuntimeCall(event, others[-1] if others else None, mark, bool(inner), direction)


def _joined(calls: list[_RuntimeCall]) -> Iterator[tuple[_RuntimeCall, _RuntimeCall]]:
    """Waits of one thread: the first and the last call of each.

    A copy to pageable memory that nothing waits for waits by itself.
    """
    left = calls[::-1]
    while left:
        call = left.pop()
        if _name(call.event) not in _COPIES:
            yield call, call
        elif left and _waits_for(left[-1], call):
            yield call, left.pop()
        elif call.direction == "DtoH pageable":
            yield call, call


def _waits_for(call: _RuntimeCall, copy: _RuntimeCall) -> bool:
    return _name(call.event) in _SYNCHRONISES and call.operation is copy.operation


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
