"""NCHW pooling with pointwise work around it: fusepass against Inductor and a copy.

    python tests/perf/pooling.py --json pooling.json

Replays of CUDA graphs with cold L2, interleaved rounds, medians of microseconds. The copy moves as
many bytes as the pooling reads and writes.

Prediction, written before the first run: fp32 with windows of 2 x 2 as Inductor, which
takes 1.05 of a copy; fp16 1.2 times as fast. Windows of 3 x 3, where Inductor takes 2.4: 1.7 times.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import fusepass
from fusepass.tune.cuda_graph_call import record
from tests.perf.recorded import keeper, options

ROUNDS = 25
FLUSHED = 256 << 20  # bytes, more than L2 holds
IMAGES = {
    "seed, one": (1, 64, 256, 256),
    "seed, batch": (64, 64, 112, 112),
    "odd": (64, 64, 113, 111),
    "small": (32, 480, 14, 14),
}
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu max 2": lambda x: F.max_pool2d(F.relu(x), 2),
    "relu max 3/2": lambda x: F.max_pool2d(F.relu(x), 3, 2, 1),
    "max 3/1": lambda x: F.max_pool2d(x, 3, 1, 1),
    "silu max 2": lambda x: F.max_pool2d(F.silu(x), 2),
    "relu mean 2": lambda x: F.avg_pool2d(F.relu(x), 2),
}


def cold(
    replays: Mapping[str, Callable[[], None]], *, after_reads: bool = False
) -> dict[str, float]:
    """Microseconds of a replay with nothing of its own in L2: medians of interleaved rounds.

    Args:
        replays: of CUDA graphs, by name.
        after_reads: whether L2 is full of what was read; else of what was written.
    """
    other = torch.zeros(FLUSHED // 4, device="cuda")
    flush = other.sum if after_reads else other.zero_
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: dict[str, list[float]] = {name: [] for name in replays}
    for turn in range(ROUNDS):
        for name in list(replays)[:: 1 if turn % 2 else -1]:
            flush()
            before.record()
            replays[name]()
            after.record()
            torch.cuda.synchronize()
            times[name].append(before.elapsed_time(after) * 1e3)
    return {name: round(statistics.median(some), 2) for name, some in times.items()}


def compared(program: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Any]:
    """Times of one program, and what fusepass chose."""
    calls: dict[str, Callable[[], Any]] = {}
    torch._dynamo.reset()
    for name in ("inductor", "fusepass"):
        compiled = torch.compile(program, backend=name)
        torch.testing.assert_close(compiled(x), program(x))
        calls[name] = functools.partial(compiled, x)
        if name == "fusepass":
            found = [d for d in fusepass.last_report(compiled).decisions if d.rule == "pool"]
            chosen = [d.reason for d in found]
    moved = (x.nbytes + program(x).nbytes) // 2 // x.itemsize
    flat = x.new_empty(moved)
    calls["copy"] = functools.partial(flat.new_empty(moved).copy_, flat)
    return {**cold({name: record(call).replay for name, call in calls.items()}), "why": chosen}


def main() -> None:
    """Measure, print, write the record."""
    keep = keeper(__doc__, options(__doc__).parse_args().json)
    with torch.no_grad():
        for image, shape in IMAGES.items():
            dtypes = (
                (torch.float16, torch.float32) if image.startswith("seed") else (torch.float16,)
            )
            for dtype in dtypes:
                x = torch.randn(shape, device="cuda").to(dtype)
                for name, program in PROGRAMS.items():
                    row = f"{image}, {str(dtype)[6:]}, {name}"
                    keep(row, compared(program, x))


if __name__ == "__main__":
    main()
