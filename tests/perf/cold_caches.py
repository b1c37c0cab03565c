"""What should empty L2 before a kernel of few rows is timed: a write or a read? 30 s of an H200.

    python tests/perf/cold_caches.py --json cold-caches.json

Linear layers and gated pairs of one to 64 rows, by kernels that stream weights, by plain loads, and
as Inductor runs them: events behind a write of 120 MB, behind a read of as much, and what one call
takes in CUDA graphs of several layers with weights of their own, as a model has them. Medians of
interleaved rounds, microseconds. What ranks kernels as the graphs do is right for the tuner.

Expected after a first run by an untracked script: behind a read times are 1 to 8 us shorter, plain
loads gain more than streams, and the order is that of the graphs where they differ by 3 % or more.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from gemm_regions import DEVICE, epilogue_of, noise
from torch import Tensor
from torch.nn import functional as F

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.baseline import unfused
from fusepass.kernels.gemm.tile_heuristic import heuristic_tiles
from fusepass.kernels.gemm.tiles import shared_memory, tiles
from fusepass.tune.cuda_graph_call import record
from fusepass.tune.timing import time_on_device
from tests.perf.recorded import keeper, options

# Rows, inner, columns, what is behind.
CASES = (
    (1, 4096, 14336, "gated"),
    (1, 14336, 4096, "nothing"),
    (1, 4096, 6144, "nothing"),
    (1, 8192, 2048, "nothing"),
    (1, 4096, 16384, "a bias"),
    (1, 3072, 12288, "a bias"),
    (1, 2048, 8192, "a bias"),
    (1, 2048, 2048, "nothing"),
    (1, 768, 3072, "a bias"),
    (16, 4096, 14336, "gated"),
    (16, 4096, 6144, "nothing"),
    (16, 1024, 4096, "a bias"),
    (64, 2048, 8192, "a bias"),
)
PLAIN = Epilogue(1, (), (), (Output("%0", "bfloat16"),))
BIASED = Epilogue(
    1,
    (EpilogueOperand("row", "bfloat16"),),
    (EpilogueStep("add", ("%0", "%1")),),
    (Output("%2", "bfloat16"),),
)
SECONDS, ROUNDS, BYTES, MOST_LAYERS = 0.1, 40, 3e8, 12
Call = Callable[[int], Any]


def epilogue_behind(name: str, m: int, k: int, n: int) -> Epilogue:
    """The epilogue of a product of such sizes."""
    if name == "gated":
        gated = lambda x, w, v: F.silu(x @ w) * (x @ v)  # noqa: E731
        return epilogue_of(gated, (m, k), (k, n), (k, n), pairs=True)
    return BIASED if name == "a bias" else PLAIN


def ways(m: int, k: int, n: int, behind: str) -> tuple[dict[str, Call], int]:
    """Calls of the likely kernels and of Inductor's, each for one of several layers."""
    epilogue = epilogue_behind(behind, m, k, n)
    x, operands = noise(m, k), [noise(n)] if behind == "a bias" else []
    each = epilogue.products * n * k * 2
    layers = max(2, min(MOST_LAYERS, int(BYTES / each) + 1))
    weights: list[list[Tensor]] = [
        [noise(n, k, scale=k**-0.5).t() for _ in range(epilogue.products)] for _ in range(layers)
    ]
    named = {
        name: tile
        for name, tile in tiles(epilogue, shared_memory(DEVICE)).items()
        if tile.takes(m, weights[0], epilogue)
    }
    text = epilogue.text()

    def ours(layer: int, tile: Any) -> Any:
        return kernel.launch(x, weights[layer], operands, text, tile)

    found: dict[str, Call] = {
        name: partial(ours, tile=named[name])
        for name in heuristic_tiles(named, epilogue.products, m, n, k)
    }
    found["inductor"] = lambda layer: unfused(x, weights[layer], operands, text)
    return found, layers


def in_graphs(calls: Mapping[str, Call], layers: int) -> dict[str, float]:
    """Microseconds of a layer, where all run one after the other."""

    def all_of(call: Call) -> None:
        for layer in range(layers):
            call(layer)

    graphs = {name: record(partial(all_of, call), 2) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            graph.replay()
            after.record()
            torch.cuda.synchronize()
            times[name].append(before.elapsed_time(after) * 1e3 / (2 * layers))
    return {name: round(statistics.median(some), 2) for name, some in times.items()}


def main() -> None:
    """Measure, print, write the record."""
    keep = keeper(__doc__, options(__doc__).parse_args().json, "microseconds")
    for m, k, n, behind in CASES:
        calls, layers = ways(m, k, n, behind)
        first = {name: partial(call, 0) for name, call in calls.items()}
        row = {}
        for name, after_reads in (("behind a write", False), ("behind a read", True)):
            samples = time_on_device(first, DEVICE, SECONDS, after_reads=after_reads)
            row[name] = {key: round(time, 2) for key, time in samples.medians().items()}
        row["in graphs"] = in_graphs(calls, layers)
        title = f"{m} x {k} -> {'2 x ' * (behind == 'gated')}{n}, {behind}"
        keep(title, row)


if __name__ == "__main__":
    main()
