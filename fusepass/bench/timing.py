"""Timing calls inside a worker: wall clock and device clock around one synchronised call."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

WARM_UP_SECONDS = 0.05
RECORDED_CALLS = 10


def synchronize(device: str) -> None:
    """Wait until the device has finished everything queued; the CPU never queues."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[], Any], device: str) -> float:
    """Seconds of one call, from before it to the moment its results exist."""
    synchronize(device)
    start = time.perf_counter()
    result = call()
    synchronize(device)
    seconds = time.perf_counter() - start
    del result
    return seconds


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect nothing while the clock runs (the worker collected before the first round)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def warm_up(call: Callable[[], Any], device: str) -> None:
    """Call untimed, at least once, until :data:`WARM_UP_SECONDS` have passed.

    Between two turns of a variant others ran: clocks fell, caches hold their data, and another
    process's threads may still be spinning.
    """
    end = time.perf_counter() + WARM_UP_SECONDS
    while True:
        call()
        synchronize(device)
        if time.perf_counter() >= end:
            return


def time_calls(
    call: Callable[[], Any], calls: int, device: str
) -> tuple[list[float], list[float] | None]:
    """Time ``calls`` calls one by one.

    Returns:
        Wall times and device times in microseconds. The wall clock runs from before the call until
        the device has finished it. The device clock is a pair of events on the current stream: it
        covers the gaps in which the device waits for the host, too. None on CPU.
    """
    wall: list[float] = []
    stream: list[float] = []
    with no_garbage_collection():
        warm_up(call, device)
        if device != "cuda":
            wall.extend(timed(call, device) * 1e6 for _ in range(calls))
            return wall, None
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        for _ in range(calls):
            before.record()
            start = time.perf_counter()
            result = call()
            after.record()
            torch.cuda.synchronize()
            wall.append((time.perf_counter() - start) * 1e6)
            stream.append(before.elapsed_time(after) * 1e3)
            # Freed between calls, as in a program that has used the result.
            del result
    return wall, stream


def time_replays(graph: torch.cuda.CUDAGraph, seconds: float) -> list[float]:
    """Microseconds per call, replay after replay for ``seconds``: kernels alone, back to back."""
    warm_up(graph.replay, "cuda")
    times: list[float] = []
    end = time.perf_counter() + seconds
    before = torch.cuda.Event(enable_timing=True)
    after = torch.cuda.Event(enable_timing=True)
    while len(times) < 3 or time.perf_counter() < end:
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) * 1e3 / RECORDED_CALLS)
    return times
