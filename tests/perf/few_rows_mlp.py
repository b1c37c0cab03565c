"""A whole SwiGLU MLP (4096 -> 14336 -> 4096, bf16) of few tokens: bar 3 of issue 6, 200 s.

    python tests/perf/few_rows_mlp.py --json few-rows-mlp.json

Microseconds of a call, medians of 40 interleaved rounds: in CUDA graphs of six calls, of ten calls
in a row by events, and of one by the wall. ``limit`` reads all weights once, in one launch, in a
graph. The weights do not fit into L2, so each call finds it cold.

Estimated from the kernels' times: with weights that come as a stream 1.03 to 1.06 times as fast as
max-autotune for one token and 1.10 times as Inductor's best mode for 16, in graphs. Written down
after a first run by an untracked script, which gave 1.06 and 1.12. Predicted for 96 and 128 tokens,
when streams took so many, from kernels alone: 1.08 and 1.03 times as fast as Inductor's best mode.
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
from gemm_regions import reading
from torch import Tensor, nn
from torch.nn import functional as F

from fusepass.bench.hardware import heading

WIDTH, HIDDEN = 4096, 14336
ROUNDS, IN_A_GRAPH, IN_A_ROW = 40, 6, 10
MODES: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "max-autotune": {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
    "fusepass": {"backend": "fusepass"},
}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def graphed(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_A_GRAPH):
            call()
    return graph


def on_device(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1000


def by_the_wall(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6


def measured(module: nn.Module, tokens: int) -> dict[str, dict[str, float]]:
    x = torch.randn(tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
    flat = torch.cat([one.detach().flatten() for one in module.parameters()])
    calls: dict[str, Callable[[], Any]] = {}
    graphs = {"limit": graphed(lambda: reading(flat))}
    for name, given in MODES.items():
        torch.compiler.reset()
        compiled = torch.compile(module, dynamic=False, **given)
        calls[name] = lambda compiled=compiled: compiled(x)
        graphs[name] = graphed(calls[name])
    found: dict[str, dict[str, list[float]]] = {"graph": {}, "ten in a row": {}, "wall": {}}

    def add(kind: str, name: str, microseconds: float) -> None:
        found[kind].setdefault(name, []).append(microseconds)

    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            add("graph", name, on_device(graph.replay) / IN_A_GRAPH)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            row = on_device(lambda call=call: [call() for _ in range(IN_A_ROW)])
            add("ten in a row", name, row / IN_A_ROW)
            add("wall", name, by_the_wall(call))
    return {
        kind: {name: round(statistics.median(times), 2) for name, times in of.items()}
        for kind, of in found.items()
    }


def main() -> int:
    """Measure, print a line for each number of tokens, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 64, 96, 128])
    given = parser.parse_args()
    torch.manual_seed(0)
    module = Mlp().cuda().bfloat16()
    record: dict[str, Any] = {**heading(__doc__, "cuda"), "microseconds": {}}
    with torch.no_grad():
        for tokens in given.tokens:
            record["microseconds"][str(tokens)] = measured(module, tokens)
            sys.stdout.write(f"{tokens}: {record['microseconds'][str(tokens)]}\n")
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
