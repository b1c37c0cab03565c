"""The models of suite ``models``, each in a minute: never slower than Inductor.

    python tests/perf/zoo.py --json zoo.json            # goes on where the file ends
    python tests/perf/zoo.py --json zoo.json --only bert gpt2 --mode reduce-overhead
    python tests/perf/zoo.py --json zoo-training.json --train  # forward and backward of a loss

Each model is compiled by Inductor and by fusepass in one mode and called in interleaved rounds: by
the wall around synchronised calls, and as a replay of one CUDA graph where the call can be recorded.
Errors are against fp64. (``python -m fusepass bench --suite models`` takes a process for each.)
In training no number is dropped, and errors are those of all gradients together.
Bars: no model below 0.98 of Inductor's speed; the geometric mean is stated.

Prediction, written before the first run: convolution networks 1.05 to 1.4, transformers with GELU
or SwiGLU 1.02 to 1.1, the rest 1.00 ± 0.01. In training, before its first run: 0.99 to 1.05.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fusepass
from fusepass.bench.hardware import heading
from fusepass.bench.program import Program, select
from fusepass.numerics import rms_error
from fusepass.tune.cuda_graph_call import record
from tests.perf.suites import models

ROUNDS, CALLS = 41, 4


def in_turns(
    calls: Mapping[str, Callable[[], Any]], timed: Callable[[Callable[[], Any]], float]
) -> dict[str, list[float]]:
    """Microseconds of a call, round by round, neighbours in time."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            times[name].append(timed(calls[name]))
    return times


def wall(call: Callable[[], Any]) -> float:
    """Microseconds around synchronised calls."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e6 / CALLS


def figures(times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Medians, and Inductor's time over ours, round by round."""
    pairs = zip(times["inductor"], times["fusepass"], strict=True)
    found: dict[str, Any] = {name: round(statistics.median(t), 1) for name, t in times.items()}
    return {**found, "ratio": round(statistics.median(a / b for a, b in pairs), 3)}


class Loss(nn.Module):
    """A model, and a loss of its results that needs no labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        """One number from results of any shape."""
        loss: Tensor = self.model(*inputs).float().square().mean()
        return loss


def undropped(model: nn.Module) -> nn.Module:
    """The model in training, of which no number is dropped: results can be compared."""
    for part in model.train().modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and ("drop" in name or isinstance(part, nn.Dropout)):
                setattr(part, name, 0.0)
    return Loss(model)


def step(call: Callable[..., Tensor], parameters: Sequence[nn.Parameter]) -> None:
    """Forward and backward of a loss, whose gradients are new."""
    for one in parameters:
        one.grad = None
    call().backward()


def gradients(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Gradients of all parameters, in one row."""
    return torch.cat([one.grad.flatten().double() for one in parameters if one.grad is not None])


def compared(program: Program, mode: str, train: bool) -> dict[str, Any]:
    """Times, ratios, errors and decisions of one model."""
    torch.manual_seed(0)
    model, inputs = program.build()
    model = undropped(model) if train else model
    parameters = list(model.parameters())
    torch._dynamo.reset()
    calls: dict[str, Callable[[], Any]] = {}
    row: dict[str, Any] = {"model": program.name, "mode": mode}
    seconds: dict[str, float] = {}
    peaks: dict[str, int] = {}
    results: dict[str, Tensor] = {}
    how: dict[str, dict[str, Any]] = {
        "inductor": {} if mode == "default" else {"mode": mode},
        "fusepass": {"backend": "fusepass", "options": {"mode": mode}},
    }

    def called(whole: Callable[..., Tensor]) -> Callable[[], Any]:
        forward = functools.partial(whole, *inputs)
        return functools.partial(step, forward, parameters) if train else forward

    def result(call: Callable[[], Any]) -> Tensor:
        made = call()
        return gradients(parameters) if train else made.clone()

    with torch.set_grad_enabled(train):
        for way, given in how.items():
            compiled = torch.compile(model, **given)
            calls[way] = called(compiled)
            began = time.perf_counter()
            calls[way]()
            seconds[way] = round(time.perf_counter() - began, 1)
            for _ in range(3):
                calls[way]()
            torch.cuda.reset_peak_memory_stats()
            calls[way]()
            peaks[way] = torch.cuda.max_memory_allocated() >> 20
        decisions = fusepass.last_report(compiled).decisions
        row["wall"] = figures(in_turns(calls, wall))
        results = {way: result(call) for way, call in calls.items()}
        results["eager"] = result(called(model))
        try:
            graphs = {way: record(call).replay for way, call in calls.items()}
            row["replay"] = figures(in_turns(graphs, wall))
        except RuntimeError as error:
            row["replay"] = str(error)[:80]
        inputs = tuple(one.double() if one.is_floating_point() else one for one in inputs)
        exact = result(called(model.double()))
    row["error"] = {way: f"{rms_error(one, exact):.2e}" for way, one in results.items()}
    row["compile_seconds"], row["peak_MiB"] = seconds, peaks
    applied = Counter(one.rule for one in decisions if one.outcome == "applied")
    return {**row, "applied": dict(applied)}


def main() -> None:
    """Measure, print a line per model, write the record after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    kept: dict[str, Any] = {
        **heading(__doc__, "cuda"),
        "rows": [],
    }
    if given.json.exists():
        kept = json.loads(given.json.read_text())
    have = {(row["model"], row["mode"]) for row in kept["rows"]}
    for program in select(models.programs("cuda"), given.only):
        if (program.name, given.mode) in have:
            continue
        row = compared(program, given.mode, given.train)
        kept["rows"].append(row)
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.stdout.flush()
        given.json.write_text(json.dumps(kept, indent=1) + "\n")
    ratios = [row["wall"]["ratio"] for row in kept["rows"] if row["mode"] == given.mode]
    mean = statistics.geometric_mean(ratios)
    sys.stdout.write(f"{len(ratios)} models: smallest {min(ratios)}, geomean {mean:.3f}\n")


if __name__ == "__main__":
    main()
