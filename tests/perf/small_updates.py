"""Four hundred small independent updates of tensors: launches, time per call, with CUDA graphs.

    python tests/perf/small_updates.py --json small-updates.json

The program of suite ``elementwise``. Wall clock
around a synchronised call, and a replay of the call as a CUDA graph; interleaved rounds, medians.

Prediction, written before the first run: one launch; 20 us in a CUDA graph against 459; without
CUDA graphs the host allocates 400 results and checks 800 inputs in any case: 2000 us against 5250.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fusepass.bench.hardware import heading
from fusepass.bench.suites.elementwise import updates
from fusepass.bench.timing import record
from tests.perf.convolutions import rounds

ROUNDS = 25


def wall(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds around a synchronised call: medians of interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            torch.cuda.synchronize()
            began = time.perf_counter()
            calls[name]()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - began) * 1e6)
    return {name: round(statistics.median(some), 1) for name, some in times.items()}


def launches(call: Callable[[], Any]) -> int:
    """Kernels of one call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.device_time > 0 for event in profile.events())


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    update, lists = updates("cuda")
    calls: dict[str, Callable[[], Any]] = {}
    seconds = {}
    torch._dynamo.reset()
    with torch.no_grad():
        for name in ("inductor", "fusepass"):
            compiled = torch.compile(update, backend=name)
            began = time.perf_counter()
            for one, other in zip(compiled(*lists), update(*lists), strict=True):
                torch.testing.assert_close(one, other)
            seconds[name] = round(time.perf_counter() - began, 1)
            calls[name] = lambda call=compiled: call(*lists)  # type: ignore[misc]
        found: dict[str, Any] = {
            "launches": {name: launches(call) for name, call in calls.items()},
            "wall": wall(calls),
            "graph": {
                name: round(statistics.median(times), 1)
                for name, times in rounds(
                    {n: record(c, 1).replay for n, c in calls.items()}
                ).items()
            },
            "compile_seconds": seconds,
        }
    sys.stdout.write(f"{json.dumps(found)}\n")
    if given.json:
        written = {
            **heading(__doc__, "cuda"),
            **found,
        }
        given.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
