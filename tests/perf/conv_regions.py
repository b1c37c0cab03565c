"""Convolutions of several pixels with an activation behind them: fusepass against Inductor.

    python tests/perf/conv_regions.py --json conv-regions.json

fp16, channels last, batch norm in inference in between. Replays of CUDA graphs with cold L2, and by
the wall around synchronised calls; interleaved rounds, medians of microseconds. Then a network of
such layers (a stem, four stages of two residual blocks each, SiLU), replays and wall.

Prediction, written before the first run, from a kernel by hand: 1.0 to 1.4, never below 1 since
what is slower is left to Inductor; the network 1.05 to 1.15.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fusepass
from fusepass.numerics import rms_error
from fusepass.tune.cuda_graph_call import record
from tests.perf.pooling import cold
from tests.perf.recorded import keeper, options

# Batch, channels, side of the image, channels of the result, stride.
CASES = (
    (32, 64, 56, 64, 1),
    (32, 128, 28, 128, 1),
    (32, 256, 14, 256, 1),
    (16, 128, 40, 128, 1),
    (1, 64, 80, 64, 1),
    (1, 128, 40, 128, 1),
    (8, 32, 160, 64, 2),
    (8, 64, 80, 128, 2),
    (16, 32, 160, 32, 1),
    (32, 512, 7, 512, 1),
)
ACTIVATIONS = {"silu": nn.SiLU(), "leaky": nn.LeakyReLU(0.1)}
ROUNDS, CALLS = 25, 8


def layer(channels: int, width: int, stride: int, activation: nn.Module) -> nn.Module:
    """Convolution, norm, activation."""
    conv = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width), activation)


class Block(nn.Module):
    """Two layers and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer(width, width, 1, nn.SiLU()) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        """A result of x's shape."""
        made: Tensor = x + self.layers(x)
        return made


def network() -> nn.Module:
    """From three channels to 512, in five steps of half the size."""
    parts: list[nn.Module] = [layer(3, 32, 2, nn.SiLU())]
    for width in (64, 128, 256, 512):
        parts += [layer(width // 2, width, 2, nn.SiLU()), Block(width), Block(width)]
    return nn.Sequential(*parts)


def walls(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of a call, around synchronised ones."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                calls[name]()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - began) * 1e6 / CALLS)
    return {name: round(statistics.median(some), 1) for name, some in times.items()}


def compared(module: nn.Module, x: Tensor) -> dict[str, Any]:
    """Times, errors and decisions of one module."""
    calls: dict[str, Callable[[], Any]] = {}
    exact = module.double()(x.double())
    module.half()
    errors, chosen = {"eager": rms_error(module(x), exact)}, []
    torch._dynamo.reset()
    for name in ("inductor", "fusepass"):
        compiled = torch.compile(module, backend=name)
        errors[name] = rms_error(compiled(x), exact)
        calls[name] = functools.partial(compiled, x)
        if name == "fusepass":
            found = fusepass.last_report(compiled).decisions
            chosen = [d.reason[:120] for d in found if d.rule == "conv_region"]
    times = cold({name: record(call).replay for name, call in calls.items()})
    wall = walls(calls)
    return {
        "replay": times,
        "wall": wall,
        "ratios": [round(t["inductor"] / t["fusepass"], 3) for t in (times, wall)],
        "rms_error": {name: f"{error:.3g}" for name, error in errors.items()},
        "why": chosen,
    }


def main() -> None:
    """Measure, print, write the record."""
    keep = keeper(__doc__, options(__doc__).parse_args().json)
    torch.manual_seed(0)
    some: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}
    for batch, channels, side, width, stride in CASES:
        shape = batch, channels, side, side
        name = f"{'x'.join(map(str, shape))} to {width}, stride {stride}, silu"
        some[name] = layer(channels, width, stride, ACTIVATIONS["silu"]), shape
    some["32x64x56x56 to 64, stride 1, leaky"] = (
        layer(64, 64, 1, ACTIVATIONS["leaky"]),
        (32, 64, 56, 56),
    )
    for batch in (1, 16):
        some[f"network, batch {batch}, 320 pixels"] = network(), (batch, 3, 320, 320)
    for name, (made, shape) in some.items():
        last = {"memory_format": torch.channels_last}
        module = made.eval().cuda().half().to(**last)  # type: ignore[call-overload]
        x = torch.randn(shape, device="cuda").half().to(**last)  # type: ignore[call-overload]
        with torch.no_grad():
            keep(name, compared(module, x))


if __name__ == "__main__":
    main()
