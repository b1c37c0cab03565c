"""Many tensors that are computed and concatenated, by groups of up to eight: against Inductor.

    python tests/perf/grouped_cats.py --json grouped-cats.json

Replays of CUDA graphs with cold L2, and by the wall around synchronised calls; interleaved rounds,
medians of microseconds.

Prediction, written before the first run: 2 us less in a graph for each launch that is saved, up to
some megabytes; beyond, where each element of a group looks at eight inputs' bounds, as long as now
or longer, so that Inductor's code stays; by the wall 3 us for each launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import fusepass
from fusepass.tune.cuda_graph_call import record
from tests.perf.conv_regions import walls
from tests.perf.pooling import cold
from tests.perf.recorded import keeper, options
from tests.perf.small_updates import launches

RULE = "grouped_cat"


def scaled(*given: Tensor) -> Tensor:
    """Each scaled by itself; pointwise work follows."""
    return F.relu(torch.cat([one * 2 + 1 for one in given], 1))


def normalised(*given: Tensor) -> Tensor:
    """Columns of dense features, as a recommendation model prepares them."""
    return torch.cat([torch.log1p(one.clamp(min=0)) for one in given], 1)


def stacked(*given: Tensor) -> Tensor:
    """Members of an ensemble, side by side."""
    return torch.stack([F.silu(one) for one in given])


def looked_up(*given: Tensor) -> Tensor:
    """Rows of tables, one table for each feature, and what the first layer makes of them."""
    half = len(given) // 2
    pairs = zip(given[:half], given[half:], strict=True)
    return torch.cat([F.embedding(one, table) for one, table in pairs], 1)


def _floats(count: int, rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(rows, columns, device="cuda").to(dtype) for _ in range(count)]


def _tables(count: int, rows: int, columns: int) -> list[Tensor]:
    places = [torch.randint(1000, (rows,), device="cuda") for _ in range(count)]
    return places + _floats(count, 1000, columns, torch.float16)


CASES: dict[str, tuple[Callable[..., Tensor], Callable[[], list[Tensor]]]] = {
    "9 of 512x16, fp16": (scaled, lambda: _floats(9, 512, 16, torch.float16)),
    "26 of 512x16, fp16": (scaled, lambda: _floats(26, 512, 16, torch.float16)),
    "64 of 512x16, fp16": (scaled, lambda: _floats(64, 512, 16, torch.float16)),
    "16 of 4096x64, fp32": (scaled, lambda: _floats(16, 4096, 64, torch.float32)),
    "16 of 8192x256, fp16": (scaled, lambda: _floats(16, 8192, 256, torch.float16)),
    "13 columns of 8192, fp32": (normalised, lambda: _floats(13, 8192, 1, torch.float32)),
    "32 stacked, 128x128, fp32": (stacked, lambda: _floats(32, 128, 128, torch.float32)),
    "26 tables, 2048 rows of 16": (looked_up, lambda: _tables(26, 2048, 16)),
    "26 tables, 2048 rows of 64": (looked_up, lambda: _tables(26, 2048, 64)),
}


def compared(program: Callable[..., Tensor], given: list[Tensor]) -> dict[str, Any]:
    """Launches, times and what was decided of one program."""
    calls: dict[str, Callable[[], Any]] = {}
    chosen: list[str] = []
    made: dict[str, Tensor] = {}
    torch._dynamo.reset()
    for name in ("inductor", "fusepass"):
        compiled = torch.compile(program, backend=name)
        made[name] = compiled(*given)
        calls[name] = functools.partial(compiled, *given)
        if name == "fusepass":
            found = fusepass.last_report(compiled).decisions
            chosen = [one.reason[:160] for one in found if one.rule == RULE]
    torch.testing.assert_close(made["fusepass"], made["inductor"], rtol=0, atol=0)
    found = {
        "launches": {name: launches(call) for name, call in calls.items()},
        "replay": cold({name: record(call).replay for name, call in calls.items()}),
        "wall": walls(calls),
    }
    return {**found, "why": chosen}


def main() -> None:
    """Measure, print, write the record."""
    keep = keeper(__doc__, options(__doc__).parse_args().json)
    with torch.no_grad():
        for name, (program, inputs) in CASES.items():
            keep(name, compared(program, inputs()))


if __name__ == "__main__":
    main()
