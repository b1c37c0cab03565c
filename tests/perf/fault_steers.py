"""What it costs to compute as eager where Inductor does not, and to look for shared memory.

    python -m tests.perf.fault_steers --json fault-steers.json

Operators of docs/limits.md that are written otherwise or run by their own kernel, alone and between
pointwise neighbours, large (2**24 elements) and small (2**14): replays as CUDA graphs, and calls
without. Updates of N pairs of tensors in place: the call compares the addresses of its inputs.

Prediction, written before the first run: formulas (`%`, `//`, expm1, sinh, cosh) stay bound by
memory when large, at most 1.05 times Inductor; own kernels (argmax over all, ldexp, avg_pool
backward) break the fusion, 1.3 to 3 times. The guard adds at most 0.1 us for each pair to a call.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fusepass
from fusepass.bench.hardware import heading
from fusepass.tune.cuda_graph_call import record
from tests.perf.convolutions import rounds
from tests.perf.small_updates import wall

LARGE, SMALL = 2**24, 2**14


def between(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The operation with a pointwise neighbour on each side."""
    return lambda x, y: operation(x * 2 + 1, y.abs() + 0.5).sigmoid() * y


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "remainder": between(lambda x, y: x % y),
    "floor_divide": between(lambda x, y: x // y),
    "expm1": between(lambda x, y: torch.expm1(x) + y),
    "elu": between(lambda x, y: torch.nn.functional.elu(x) + y),
    "sinh": between(lambda x, y: torch.sinh(x) + y),
    "cosh": between(lambda x, y: torch.cosh(x) + y),
    "argmax": lambda x, y: (x * y).view(128, -1).t().argmax() + y.sum(),
    "any_uint8": lambda x, y: (x * y).to(torch.uint8).any() * y,
    "normalised": between(lambda x, y: x / y),  # no fault: the noise of the comparison
}


def compared(program: Callable[..., Any], *inputs: Any) -> dict[str, Any]:
    """Times of one program, and what fusepass said of it."""
    calls: dict[str, Callable[[], Any]] = {}
    torch._dynamo.reset()
    found: dict[str, Any] = {}
    for name in ("inductor", "fusepass"):
        compiled = torch.compile(program, backend=name)
        compiled(*inputs)
        calls[name] = functools.partial(compiled, *inputs)
        if name == "fusepass":
            decisions = decisions_of(compiled)
            found["steered"] = [d for d in decisions if "inductor_fault" in d]
    found["wall"] = wall(calls)
    replays = rounds({name: record(call).replay for name, call in calls.items()})
    found["graph"] = {name: round(statistics.median(some), 2) for name, some in replays.items()}
    return found


def decisions_of(compiled: Callable[..., Any]) -> list[str]:
    """The decisions of a compiled callable as text."""
    return [f"{d.rule} {d.reason_code.value}" for d in fusepass.last_report(compiled).decisions]


def update_all(parameters: list[Tensor], gradients: list[Tensor]) -> None:
    """Write each parameter in place."""
    for p, g in zip(parameters, gradients, strict=True):
        p.add_(g)


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kept: dict[str, Any] = heading(__doc__, "cuda")

    def keep(name: str, row: dict[str, Any]) -> None:
        kept[name] = row
        sys.stdout.write(f"{name}: {json.dumps(row)}\n")
        sys.stdout.flush()
        if given.json:
            given.json.write_text(json.dumps(kept, indent=1) + "\n")

    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            for size in (LARGE, SMALL):
                x, y = (torch.randn(size, device="cuda", dtype=dtype) for _ in range(2))
                for name, program in OPERATIONS.items():
                    keep(f"{name} {dtype} {size}".replace("torch.", ""), compared(program, x, y))
        for count in (10, 100, 400):
            lists = ([torch.zeros(64, device="cuda") for _ in range(count)] for _ in range(2))
            keep(f"update {count}", compared(update_all, *lists))


if __name__ == "__main__":
    main()
