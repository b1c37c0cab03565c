"""Four hundred small independent updates of tensors: launches, time per call, with CUDA graphs.

    python tests/perf/small_updates.py --json small-updates.json

The program of suite ``elementwise``, and one that updates the tensors themselves. Wall clock around
a synchronised call, and a replay of the call as a CUDA graph; interleaved rounds, medians.

Prediction, written before the first run: one launch; 20 us in a CUDA graph against 459; without
CUDA graphs the host allocates 400 results and checks 800 inputs in any case: 2000 us against 5250.
Since inputs are asked for all at once (0.13 instead of 1.5 us each): 1300 of 6900 on a slow host.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusepass.bench.hardware import heading
from fusepass.tune.cuda_graph_call import record
from tests.perf.convolutions import rounds
from tests.perf.suites.elementwise import updates

ROUNDS = 25


def updated_in_place(parameters: list[Tensor], gradients: list[Tensor]) -> None:
    """A like update, of the tensors themselves: what is subtracted is of those already scaled."""
    for p, g in zip(parameters, gradients, strict=True):
        p.mul_(0.99).sub_(0.01 * g * torch.sigmoid(p))


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


def compared(program: Callable[..., Any], lists: Sequence[list[Tensor]]) -> dict[str, Any]:
    """Launches, times and seconds to compile of one program."""
    calls: dict[str, Callable[[], Any]] = {}
    seconds = {}
    torch._dynamo.reset()
    for name in ("inductor", "fusepass"):
        compiled = torch.compile(program, backend=name)
        mine, exact = ([[one.clone() for one in some] for some in lists] for _ in range(2))
        began = time.perf_counter()
        made = [*(compiled(*mine) or []), *mine[0]]
        seconds[name] = round(time.perf_counter() - began, 1)
        for one, other in zip(made, [*(program(*exact) or []), *exact[0]], strict=True):
            torch.testing.assert_close(one, other)
        calls[name] = functools.partial(compiled, *mine)
    found: dict[str, Any] = {
        "launches": {name: launches(call) for name, call in calls.items()},
        "wall": wall(calls),
    }
    replays = rounds({name: record(call).replay for name, call in calls.items()})
    found["graph"] = {name: round(statistics.median(some), 1) for name, some in replays.items()}
    return {**found, "compile_seconds": seconds}


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    update, lists = updates("cuda")
    kept: dict[str, Any] = heading(__doc__, "cuda")
    with torch.no_grad():
        for name, program in (("new tensors", update), ("in place", updated_in_place)):
            kept[name] = compared(program, lists)
            sys.stdout.write(f"{name}: {json.dumps(kept[name])}\n")
            sys.stdout.flush()
            if given.json:
                given.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
