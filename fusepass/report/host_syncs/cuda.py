"""What one call waits for on a CUDA device, and how long, from the profiler."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fusepass.report.host_syncs import trace
from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.host_syncs.observe import Wait
from fusepass.report.host_syncs.place import ProgramPlace
from fusepass.report.host_syncs.profiler_marks import MarkedWatch, Noted
from fusepass.report.host_syncs.value_use import calls, use_of
from fusepass.torch_private.fx.dispatch_watch import marked

Fresh = Callable[[], AbstractContextManager[Any]]


def measure(
    watch: MarkedWatch,
    watched: Callable[[], Any],
    fresh: Fresh,
    plain: Callable[[], Any] | None = None,
) -> list[Wait]:
    """Waits of one call that is watched, with the times of one that is not.

    ``fresh`` is entered around each call: it puts back what the call changed. Without ``plain``,
    which makes the same call by itself, there are no times.
    """
    with fresh(), watch.listening():
        events = _profiled(watched)
    if not trace.has_device(events):
        return _as_warned(watch)
    found = trace.host_waits(events)
    times: list[trace.HostWait] = []
    if found and plain is not None:
        with fresh():
            times = trace.host_waits(_profiled(plain))
    made = []
    for wait, spent in zip(found, undisturbed(found, times), strict=True):
        noted = _noted(watch, wait)
        place = ProgramPlace() if noted is None else noted.place
        # Where no operation was seen: torch's name for it, or the runtime's function.
        operation = noted.operation if noted is not None else ""
        operation = operation or wait.operation.replace("::", ".") or wait.call
        kind = kind_of(wait, noted)
        host, device = spent if spent is not None else (None, None)
        made.append(Wait(kind, operation, place, 1, False, host, device))
    return made


def undisturbed(
    watched: Sequence[trace.HostWait], plain: Sequence[trace.HostWait]
) -> list[tuple[float, float | None] | None]:
    """For each watched wait how long the host and the device waited in the plain call.

    Watching slows the host. Both calls have the same waits in the same order, as long as the
    program does the same twice; None where the plain call has no such wait at that place.
    """
    times: list[tuple[float, float | None] | None] = [None] * len(watched)
    matcher = difflib.SequenceMatcher(
        None, [_token(w) for w in watched], [_token(w) for w in plain], autojunk=False
    )
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            found = plain[block.b + offset]
            times[block.a + offset] = found.wait_us, found.idle_us
    return times


def _token(wait: trace.HostWait) -> tuple[str, str, str]:
    return wait.call, wait.operation, wait.direction


def _noted(watch: MarkedWatch, wait: trace.HostWait) -> Noted | None:
    """What stands at the mark of a wait; near it, if the mark is that of the next operation."""
    noted = watch.noted.get(wait.mark or 0)
    if noted is None or wait.inside or not noted.operation:
        return noted
    return Noted("", noted.place, only_near=True)


def kind_of(wait: trace.HostWait, noted: Noted | None) -> Kind:
    """Why the host waits, from what the trace shows and what stood at the mark."""
    kinds = () if noted is None else noted.kinds
    if wait.frees:
        return Kind.ALLOCATION
    if noted is None or noted.only_near:
        if wait.direction.startswith("HtoD"):
            return Kind.COPY_IN  # torch.tensor and x[[0, 1]] copy where no operation is seen
        return Kind.OPERATION if wait.operation.startswith("aten::") else Kind.UNKNOWN
    if noted.place.text:
        return Kind.PRINT
    if wait.direction.startswith("HtoD"):
        return Kind.COPY_IN
    others = [kind for kind in kinds if kind is not Kind.COPY_IN]
    if others:
        # A list of numbers is a copy of the whole tensor.
        read = others[0] is Kind.ITEM or calls(noted.place, "tolist")
        return use_of(noted.place) if read else others[0]
    if kinds:
        return kinds[0]
    if wait.inside:
        return Kind.OPERATION
    return use_of(noted.place) if wait.direction else Kind.UNKNOWN


def _as_warned(watch: MarkedWatch) -> list[Wait]:
    """Where the profiler sees nothing of the device: what torch warned of, without times."""
    made = []
    for noted in watch.noted.values():
        times = noted.warned or int(bool(set(noted.kinds) & {Kind.SYNCHRONIZE, Kind.ALLOCATION}))
        if times:
            kind = noted.kinds[0] if noted.kinds else Kind.OPERATION
            if kind is Kind.ITEM or not noted.operation:
                kind = use_of(noted.place)
            made.append(Wait(kind, noted.operation, noted.place, times))
    return made


def _profiled(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """Events of the profiler's trace of one call, of the host and of the device."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with marked(trace.CALL):
            call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events
