"""Suite ``linear`` against Inductor's default mode and its ``max-autotune-no-cudagraphs``.

    python tests/perf/linear_modes.py --json linear-modes.json [--seconds 500]

Each program as CUDA graphs of one call, L2-cold, interleaved rounds, medians of microseconds;
``floor`` is the linear layer by itself. fusepass is in default mode throughout: what it times takes
a second or two, what Inductor's best mode times a quarter of a minute. Bars of issue 6: geometric
means of 1.14 and 1.08.

Prediction, written before the first run: 1.17 of default, as in suite ``linear``; 1.08 of the best
mode, whose own kernels have the activation behind them, at 0.9 to 1 of the speed of cuBLAS's.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import fusepass
from fusepass.bench.program import Program
from fusepass.tune.cuda_graph_call import record
from fusepass.tune.timing import time_on_device
from tests.perf.recorded import keeper, options
from tests.perf.suites import linear

SECONDS = 0.15
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
    "fusepass": {"backend": "fusepass"},
}


def compared(program: Program) -> dict[str, Any]:
    """Times of one program each way, Inductor's over ours, and what was taken."""
    torch.manual_seed(0)
    model, inputs = program.build()
    calls: dict[str, Callable[[], Any]] = {}
    with torch.no_grad():
        for name, given in WAYS.items():
            torch._dynamo.reset()
            compiled = torch.compile(model, **given)
            compiled(*inputs)
            calls[name] = functools.partial(compiled, *inputs)
        decisions = fusepass.last_report(compiled).decisions
        assert program.floor is not None
        alone, given_alone = program.floor()
        calls["floor"] = functools.partial(alone, *given_alone)
        graphs = {name: record(call) for name, call in calls.items()}
        samples = time_on_device(
            {name: graph.replay for name, graph in graphs.items()}, inputs[0].device, SECONDS
        )
    ratios = {
        name: statistics.median(
            a / b for a, b in zip(samples.rounds[name], samples.rounds["fusepass"], strict=True)
        )
        for name in calls
    }
    return {
        "microseconds": {name: round(one, 2) for name, one in samples.medians().items()},
        "ratio": {name: round(one, 3) for name, one in ratios.items() if name != "fusepass"},
        "taken": [d.reason.split(":")[0] for d in decisions if d.outcome == "applied"],
    }


def main() -> None:
    """Measure, print, write the record; what no longer fits into the time is left out."""
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=500.0)
    given = parser.parse_args()
    keep = keeper(__doc__, given.json)
    began, rows = time.perf_counter(), {}
    for program in linear.programs("cuda"):
        if time.perf_counter() - began > given.seconds:
            break
        rows[program.name] = compared(program)
        keep(program.name, rows[program.name])
    for name in ("default", "max-autotune") if rows else ():
        mean = statistics.geometric_mean(row["ratio"][name] for row in rows.values())
        sys.stdout.write(f"{len(rows)} programs, {name}: {mean:.3f}\n")


if __name__ == "__main__":
    main()
