"""Networks of convolutions in inference: fusepass, Inductor, and both with frozen weights.

    python tests/perf/convolutions.py resnet50 --batch 1 32 128 --freezing --json resnet50.json

fp16, channels last, random weights, norms with statistics that were not just initialised. Each
network is one CUDA graph per compiler, replayed in interleaved rounds, timed with CUDA events;
results are held to fp64. Needs timm. With ``--contiguous`` the images come as (B, C, H, W) in
memory.

Prediction for ResNet-50, written before the first run: 1.13, 1.29 and 1.37 for the three
batches above. BASELINES.md measured 1.22, 1.33 and 1.39 of Inductor with folded weights. Scaling 25
million weights in each call takes 30 us.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config

import fusepass
from fusepass.bench.hardware import heading
from fusepass.numerics import rms_error
from fusepass.tune.cuda_graph_call import record
from tests.perf.suites.conv import as_if_trained

ROUNDS, CALLS = 11, 4
LAST = torch.channels_last


def network(name: str) -> nn.Module:
    """One of timm's, its norms as if they had been trained."""
    import timm

    model: nn.Module = timm.create_model(name)
    model = as_if_trained(model)
    return model.eval().cuda().half().to(memory_format=LAST)  # type: ignore[call-overload,no-any-return]


def rounds(calls: Mapping[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Microseconds of a call, round by round, neighbours in time."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            before.record()
            for _ in range(CALLS):
                calls[name]()
            after.record()
            torch.cuda.synchronize()
            times[name].append(before.elapsed_time(after) * 1e3 / CALLS)
    return times


def kernels(call: Callable[[], Any]) -> dict[str, tuple[int, float]]:
    """How often each kernel of one call runs, and for how many microseconds, longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    averages = sorted(profile.key_averages(), key=lambda one: -one.device_time_total)
    return {one.key[:90]: (one.count, round(one.device_time_total, 1)) for one in averages[:40]}


def compared(
    name: str, batch: int, contiguous: bool, freezing: bool, looked: Path | None
) -> dict[str, Any]:
    """Times, ratios to fusepass, errors and decisions of one network at one batch size."""
    torch.manual_seed(0)
    model = network(name)
    x = torch.randn(batch, 3, 224, 224, device="cuda").half()
    x = x if contiguous else x.to(memory_format=LAST)
    ways: dict[str, dict[str, Any]] = {"inductor": {"backend": "inductor"}}
    if freezing:
        ways["inductor frozen"] = {"options": {"freezing": True}}
        ways["fusepass frozen"] = {"backend": "fusepass", "options": {"frozen": True}}
    ways["fusepass"] = {"backend": "fusepass"}
    calls: dict[str, Callable[[], Tensor]] = {}
    seconds, compiled = {}, None
    torch._dynamo.reset()  # once: it would take the code of those before away
    with torch.no_grad():
        for way, given in ways.items():
            compiled = torch.compile(model, **given)
            began = time.perf_counter()
            # Dynamo asks the global config: the option alone freezes nothing.
            with inductor_config.patch(freezing=way == "inductor frozen"):
                compiled(x)
            seconds[way] = round(time.perf_counter() - began, 1)
            calls[way] = lambda call=compiled: call(x)  # type: ignore[misc]
        decisions = fusepass.last_report(compiled).decisions
        measured = rounds({way: record(call).replay for way, call in calls.items()})
        results = {way: call().clone() for way, call in calls.items()}
        results["eager"] = model(x)
        if looked:
            reasons = Counter(f"{one.rule} {one.outcome} {one.reason}" for one in decisions)
            seen = {"kernels": {way: kernels(call) for way, call in calls.items()}}
            record_of = looked / f"{name}-{batch}.json"
            record_of.write_text(json.dumps({**seen, "decisions": dict(reasons)}, indent=1))
        exact = model.double()(x.double())
    pairs = {way: zip(measured[way], measured["fusepass"], strict=True) for way in ways}
    return {
        "network": name,
        "batch": batch,
        "images": "contiguous" if contiguous else "channels last",
        "microseconds": {way: round(statistics.median(t), 1) for way, t in measured.items()},
        "ratio": {w: round(statistics.median(a / b for a, b in p), 3) for w, p in pairs.items()},
        "error": {way: f"{rms_error(made, exact):.2e}" for way, made in results.items()},
        "compile_seconds": seconds,
        "decisions": dict(Counter(f"{one.rule} {one.outcome}" for one in decisions)),
    }


def main() -> None:
    """Measure, print a line per row, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--contiguous", action="store_true")
    parser.add_argument("--freezing", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--kernels", type=Path, help="folder for kernels and reasons of each row")
    given = parser.parse_args()
    record: dict[str, Any] = {
        **heading(__doc__, "cuda"),
        "rows": [],
    }
    for name in given.networks:
        for batch in given.batch:
            row = compared(name, batch, given.contiguous, given.freezing, given.kernels)
            record["rows"].append(row)
            sys.stdout.write(f"{json.dumps(row)}\n")
            sys.stdout.flush()
            if given.json:
                given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
