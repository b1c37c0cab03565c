"""Layers of single precision whose products are TF32: times, and how exact their results are.

    python tests/perf/tf32_layers.py --json tf32-layers.json [--seconds 300]

Each layer as CUDA graphs of one call, L2-cold, interleaved rounds, medians of microseconds, in
default mode. ``error`` is the RMS error against float64, over eager's: cuBLAS rounds operands to
TF32, while tensor cores given fp32 drop the bits that it rounds.

Prediction, written before the first run: errors of 1.00 (2.6 before operands were rounded). Times as
before for what TMA rounds on the way, of 1024 rows and more: 1.19 with GELU, 1.15 with ReLU, 1.09 of
gated pairs. Few rows, where instructions round: 1.15 with one and 16; 64 rows by TMA 1.05, by
instructions left to Inductor. Siblings of 16 rows 1.3, of 128 left to Inductor.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.numerics import rms_error
from fusepass.tune.cuda_graph_call import record
from fusepass.tune.timing import time_on_device
from tests.perf.recorded import keeper, options

SECONDS = 0.2


class Layer(nn.Module):
    """What ``program`` makes of x and some weights, given as linear layers."""

    def __init__(self, program: Callable[..., Any], width: int, *columns: int) -> None:
        super().__init__()
        self.program = program
        self.layers = nn.ModuleList(nn.Linear(width, n, bias=False) for n in columns)

    def forward(self, x: Tensor) -> Any:
        return self.program(x, *self.layers)


def _gated(x: Tensor, gate: nn.Module, up: nn.Module) -> Tensor:
    return F.silu(gate(x)) * up(x)


def _projections(x: Tensor, *layers: nn.Module) -> list[Tensor]:
    return [layer(x) for layer in layers]


def _experts(x: Tensor, gate: nn.Module, up: nn.Module) -> Tensor:
    first, second = (w.weight.unflatten(0, (8, -1)).mT for w in (gate, up))
    parts = x.unflatten(0, (8, -1))
    return F.silu(parts @ first) * (parts @ second)


LAYERS: dict[str, tuple[int, Callable[[], Layer]]] = {
    "GELU, 8192 x 1024 -> 4096": (8192, lambda: Layer(lambda x, w: F.gelu(w(x)), 1024, 4096)),
    "GELU, 1024 x 768 -> 3072": (1024, lambda: Layer(lambda x, w: F.gelu(w(x)), 768, 3072)),
    "ReLU, 4096 x 2048 -> 8192": (4096, lambda: Layer(lambda x, w: F.relu(w(x)), 2048, 8192)),
    "SwiGLU, 4096 x 2048 -> 2 * 8192": (4096, lambda: Layer(_gated, 2048, 8192, 8192)),
    "SwiGLU, 256 x 1024 -> 2 * 4096": (256, lambda: Layer(_gated, 1024, 4096, 4096)),
    "SwiGLU, 64 x 4096 -> 2 * 14336": (64, lambda: Layer(_gated, 4096, 14336, 14336)),
    "SwiGLU, 16 x 4096 -> 2 * 14336": (16, lambda: Layer(_gated, 4096, 14336, 14336)),
    "SwiGLU, 1 x 4096 -> 2 * 14336": (1, lambda: Layer(_gated, 4096, 14336, 14336)),
    "GELU, 1 x 2048 -> 8192": (1, lambda: Layer(lambda x, w: F.gelu(w(x)), 2048, 8192)),
    "GELU, 32 x 2048 -> 8192": (32, lambda: Layer(lambda x, w: F.gelu(w(x)), 2048, 8192)),
    "GELU, 64 x 1024 -> 4096": (64, lambda: Layer(lambda x, w: F.gelu(w(x)), 1024, 4096)),
    "projections, 16 x 4096": (16, lambda: Layer(_projections, 4096, 4096, 1024, 1024)),
    "projections, 64 x 1024": (64, lambda: Layer(_projections, 1024, 1024, 256, 256)),
    "projections, 128 x 768": (128, lambda: Layer(_projections, 768, 768, 768, 768)),
    "8 experts, SwiGLU, 8 x 1024 x 2048 -> 4096": (
        8 * 1024,
        lambda: Layer(_experts, 2048, 8 * 4096, 8 * 4096),
    ),
}


def compared(rows: int, layer: Layer) -> dict[str, Any]:
    """Times each way, Inductor's over ours; what was taken; errors over eager's."""
    layer, width = layer.cuda(), layer.layers[0].in_features
    x = torch.randn(rows, width, device="cuda")
    results, calls = {"eager": layer(x)}, {}
    for name in ("inductor", "fusepass"):
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend=name)
        results[name] = compiled(x)
        calls[name] = functools.partial(compiled, x)
    taken = [d for d in fusepass.last_report(compiled).decisions if d.outcome == "applied"]
    graphs = {name: record(call) for name, call in calls.items()}
    timed = {name: graph.replay for name, graph in graphs.items()}
    samples = time_on_device(timed, x.device, SECONDS)
    pairs = zip(samples.rounds["inductor"], samples.rounds["fusepass"], strict=True)
    exact = deepcopy(layer).double()(x.double())
    errors = {name: _error(made, exact) for name, made in results.items()}
    return {
        "microseconds": {name: round(one, 2) for name, one in samples.medians().items()},
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
        "error": {name: round(one / errors["eager"], 3) for name, one in errors.items()},
        "taken": [one.reason.split(":")[0] for one in taken],
    }


def _error(made: Any, exact: Any) -> float:
    both = zip(made, exact, strict=True) if isinstance(made, list) else [(made, exact)]
    return max(rms_error(one, truth) for one, truth in both)


def main() -> None:
    """Measure, print, write the record; what no longer fits into the time is left out."""
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    given = parser.parse_args()
    keep, began = keeper(__doc__, given.json), time.perf_counter()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    with torch.no_grad():
        for name, (rows, made) in LAYERS.items():
            if time.perf_counter() - began > given.seconds:
                break
            keep(name, compared(rows, made()))


if __name__ == "__main__":
    main()
