"""Training steps of two layers: bar 5 of issue 6, fusepass against Inductor.

    python tests/perf/training_layers.py --json training-layers.json

bf16, 8192 rows, 2048 -> 8192 (-> 2048 for the SwiGLU MLP); forward and backward, as replays of one
CUDA graph, interleaved, medians of microseconds; peak memory of one step beyond what is held; errors
of the result and of all gradients, against fp64.

Prediction, written before the first run: SwiGLU 1.033 of Inductor (1.015 measured before, and the
gradient of x, a sum of two products, 60 us faster with the sum apart from the library's addmm);
Linear + GELU 1.05, as measured before.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.bench.hardware import heading
from fusepass.numerics import rms_error
from fusepass.tune.cuda_graph_call import record
from tests.perf.convolutions import rounds

ROWS, DIM, HIDDEN = 8192, 2048, 8192


class SwiGlu(nn.Module):
    """A Llama's MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(DIM, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 2048) -> (rows, 2048)."""
        made: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return made


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "swiglu": SwiGlu,
    "linear gelu": lambda: nn.Sequential(nn.Linear(DIM, HIDDEN), nn.GELU()),
}


def step(module: Callable[..., Tensor], params: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """The result and all gradients."""
    made = module(x)
    return [made, *torch.autograd.grad(made, [x, *params], y)]


def compared(plain: nn.Module) -> dict[str, Any]:
    """Times, ratios, peaks and errors of one layer."""
    torch._dynamo.reset()
    params = list(plain.parameters())
    x = torch.randn(ROWS, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with torch.no_grad():
        upstream = torch.randn_like(plain(x)) * 0.1
    wide = copy.deepcopy(plain).double()
    given = x.detach().double().requires_grad_()
    exact = step(wide, list(wide.parameters()), given, upstream.double())
    del wide
    calls: dict[str, Callable[[], list[Tensor]]] = {}
    peaks, errors, decisions = {}, {}, {}
    for backend in ("inductor", "fusepass"):
        compiled: Any = torch.compile(plain, backend=backend)
        calls[backend] = lambda compiled=compiled: step(compiled, params, x, upstream)  # type: ignore[misc]
        for _ in range(3):
            calls[backend]()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        made = calls[backend]()
        torch.cuda.synchronize()
        peaks[backend] = round((torch.cuda.max_memory_allocated() - held) / 2**20, 1)
        pairs = zip(made, exact, strict=True)
        errors[backend] = [f"{rms_error(one, other):.2e}" for one, other in pairs]
        del made
        if backend == "fusepass":
            found = fusepass.last_report(compiled).decisions
            decisions = dict(Counter(f"{one.rule} {one.outcome} {one.reason}" for one in found))
    del exact
    times = rounds({name: record(call).replay for name, call in calls.items()})
    pairs = zip(times["inductor"], times["fusepass"], strict=True)
    return {
        "microseconds": {name: round(statistics.median(t), 1) for name, t in times.items()},
        "ratio": round(statistics.median(a / b for a, b in pairs), 4),
        "peak_mib": peaks,
        "rms_error": errors,
        "decisions": decisions,
    }


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kept: dict[str, Any] = heading(__doc__, "cuda")
    torch.manual_seed(0)
    for name, make in LAYERS.items():
        kept[name] = compared(make().cuda().bfloat16())
        sys.stdout.write(f"{name}: {json.dumps(kept[name])}\n")
        sys.stdout.flush()
        if given.json:
            given.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
