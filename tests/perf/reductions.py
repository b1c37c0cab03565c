"""Reductions that Inductor parts into several kernels: as it does, whole, and cooperative.

    python tests/perf/reductions.py --json reductions.json
    python tests/perf/reductions.py --of grid --json reductions-grid.json
    python tests/perf/reductions.py --of costly --json reductions-costly.json

Replays of CUDA graphs with cold L2, interleaved rounds, medians of microseconds, forward only but
where a program says otherwise. ``copy`` moves the bytes of the program's inputs and outputs once.

Prediction, written before the first run: where the whole is below some 4 MB its time is that of
launches, and one whole kernel is 1.3 to 2 times as fast as three to five parted ones; above that
parts win wherever there are fewer results than some 132 x 64, and whole kernels lose by up to 10.
Cooperative kernels are between both: 1.2 times as fast as parts at few results, whatever the size.

Measured: right for few rows (1.1 to 1.9 up to 512), wrong for sums of all, which lose from 65,536
numbers on (0.03 at 4 MB). Cooperative kernels win up to 131,072 numbers where the sum is read again
(1.1 to 1.6) and lose above (0.3 to 0.9).

What is recorded last loses up to 1.7 us where results are large, with the same kernels, too (rows
in which ``fusepass`` has as many as ``inductor``: 0.90 to 1.0): its results have pages of their own.
That is a guess; what ``fusepass`` gains is understated by as much.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor import metrics
from torch.nn import functional as F

from fusepass.inductor.settings_search import CONFIGS
from fusepass.numerics import rms, rms_error
from fusepass.tune.cuda_graph_call import record
from tests.perf.recorded import keeper, options

ROUNDS = 25
FLUSHED = 256 << 20  # bytes, more than L2 holds
SHAPES = ((64, 512), (512, 512), (512, 4096), (4096, 512), (4096, 4096), (32768, 512), (100, 65536))
IMAGES = ((8, 64, 16, 16), (8, 64, 56, 56), (2, 512, 64, 64), (64, 256, 28, 28))
WAYS: dict[str, Mapping[str, Any]] = {"inductor": {}} | {
    one.name: one.settings for one in CONFIGS if one.name.endswith("reductions")
}
WAYS["fusepass"] = {}


def _norm_backward(x: Tensor, given: Tensor) -> list[Tensor]:
    """Gradients of LayerNorm's gain and bias, by hand: two sums over rows."""
    mean = x.mean(-1, keepdim=True)
    hat = (x - mean) * (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    return [(given * hat).sum(0), given.sum(0)]


def _contrastive(x: Tensor) -> Tensor:
    return (x.logsumexp(0).mean() + x.logsumexp(1).mean()) / 2


def _sinkhorn(x: Tensor) -> Tensor:
    for _ in range(2):
        x = x - x.logsumexp(1, keepdim=True)
        x = x - x.logsumexp(0, keepdim=True)
    return x.exp()


PLANES: dict[str, Callable[..., Any]] = {
    "softmax over rows": lambda x: x.softmax(0),
    "sum over rows": lambda x: x.sum(0),
    "mean of all": lambda x: x.mean(),
    "standardise all": lambda x: (x - x.mean()) / x.std(),
    "scale by largest": lambda x: (x / x.abs().amax().clamp(1e-6) * 127).round().to(torch.int8),
    "scale rows by largest of all rows": lambda x: x / x.abs().amax(0).clamp(1e-6),
    "between least and largest": lambda x: (x - x.amin()) / (x.amax() - x.amin()),
    "clip by norm": lambda x: x * (1.0 / (x.norm() + 1e-6)).clamp(max=1.0),
    "weight norm": lambda x: x / x.norm(dim=0, keepdim=True),
    "contrastive": _contrastive,
    "sinkhorn": _sinkhorn,
    "gradient of a bias": lambda x: (x * 2).float().sum(0).to(x.dtype),
    "gradients of LayerNorm": lambda x: _norm_backward(x, x.sin()),
    "gradient of a bias behind GELU": lambda x: torch.ops.aten.gelu_backward(x, x).sum(0),
    "softmax of GELU": lambda x: F.gelu(x).softmax(0),
    "batch norm over rows": lambda x: F.relu(F.batch_norm(x, None, None, training=True)),
    "mean squares": lambda x: F.mse_loss(x, x.sin()),
    "variance of columns": lambda x: x.var(0),
}
PICTURES: dict[str, Callable[..., Any]] = {
    "GroupNorm SiLU": lambda x: F.silu(F.group_norm(x, 32)),
    "batch norm, training": lambda x: F.relu(F.batch_norm(x, None, None, training=True)),
    "instance norm": lambda x: F.instance_norm(x),
    "normalize channels": lambda x: F.normalize(x, dim=1),
    "mean of pictures": lambda x: x.mean((2, 3)),
}


GRID_ROWS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
GRID_COLUMNS = (32, 128, 512, 1024, 2048, 4096, 8192, 16384, 65536)
GRID = (
    ("sum over rows", torch.float32),
    ("sum over rows", torch.bfloat16),
    ("softmax over rows", torch.float32),
    ("softmax over rows", torch.bfloat16),
    ("variance of columns", torch.float32),
)
COSTLY = (
    "gradients of LayerNorm",
    "gradient of a bias behind GELU",
    "softmax of GELU",
    "sinkhorn",
    "batch norm over rows",
)
OF_ALL = ("mean of all", "standardise all", "scale by largest", "clip by norm")
ALL = (8 << 10, 12 << 10, 16 << 10, 24 << 10, 32 << 10, 48 << 10, 64 << 10, 96 << 10, 128 << 10)

Row = tuple[str, Callable[..., Any], tuple[int, ...], torch.dtype]


def grid() -> list[Row]:
    """Few programs over many sizes: where a whole reduction begins to lose."""
    found = []
    for name, dtype in GRID:
        for shape in itertools.product(GRID_ROWS, GRID_COLUMNS):
            sizes = "x".join(map(str, shape))
            found.append((f"{name}, {sizes}, {str(dtype)[6:]}", PLANES[name], shape, dtype))
    for name, count in itertools.product(OF_ALL, ALL):
        found.append((f"{name}, {count}, float32", PLANES[name], (count,), torch.float32))
    return found


def costly() -> list[Row]:
    """Programs with more to compute, over sizes where a sum is faster whole."""
    found = []
    for name, shape in itertools.product(
        COSTLY, itertools.product(GRID_ROWS[2:6], GRID_COLUMNS[:7])
    ):
        sizes = "x".join(map(str, shape))
        found.append((f"{name}, {sizes}, float32", PLANES[name], shape, torch.float32))
    return found


def rows() -> list[Row]:
    """Each program, its input's sizes and dtype, by a name."""
    found = []
    for programs, shapes in ((PLANES, SHAPES), (PICTURES, IMAGES)):
        for name, program in programs.items():
            for shape in shapes:
                dtype = torch.bfloat16 if math.prod(shape) % 3 == 1 else torch.float32
                sizes = "x".join(map(str, shape))
                found.append((f"{name}, {sizes}, {str(dtype)[6:]}", program, shape, dtype))
    return found


def cold(replays: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Microseconds of a replay with nothing of its operands in L2: medians of interleaved rounds."""
    other = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: dict[str, list[float]] = {name: [] for name in replays}
    for turn in range(ROUNDS):
        for name in list(replays)[:: 1 if turn % 2 else -1]:
            other.zero_()
            before.record()
            replays[name]()
            after.record()
            torch.cuda.synchronize()
            times[name].append(before.elapsed_time(after) * 1e3)
    return {name: round(statistics.median(some), 2) for name, some in times.items()}


def compiled_as(name: str, program: Callable[..., Any]) -> Callable[..., Any]:
    if name == "fusepass":
        return torch.compile(program, backend="fusepass", dynamic=False)
    return torch.compile(program, options=dict(WAYS[name]), dynamic=False)


def compiled(
    program: Callable[..., Any], x: Tensor, ways: Sequence[str]
) -> dict[str, Callable[[], Any]]:
    """A call each way, which gives what the program does."""
    found = {}
    want = program(x.double())
    for name in ways:
        torch._dynamo.reset()
        made = compiled_as(name, program)
        found[name] = functools.partial(made, x)
        check(found[name](), want)
    return found


def check(made: Any, want: Any) -> None:
    """Compare results; half types may be off by one more rounding of each number, on the whole."""
    for one, other in zip(
        *([x] if isinstance(x, Tensor) else x for x in (made, want)), strict=True
    ):
        far = rms_error(one.double(), other.double())
        assert far <= 2e-2 * max(rms(other.double()), 1e-3), far


def compared(program: Callable[..., Any], x: Tensor, ways: Sequence[str]) -> dict[str, float]:
    """Microseconds of the ways."""
    calls: dict[str, Callable[[], Any]] = dict(compiled(program, x, ways))
    made = program(x)
    some = made if isinstance(made, list) else [made]
    moved = (x.nbytes + sum(one.nbytes for one in some)) // 2 // x.itemsize
    flat = x.new_empty(moved)
    calls["copy"] = functools.partial(flat.new_empty(moved).copy_, flat)
    return cold({name: record(call).replay for name, call in calls.items()})


def kernels(program: Callable[..., Any], x: Tensor, ways: Sequence[str]) -> dict[str, int]:
    """How many kernels Inductor generates each way, compiled anew."""
    found = {}
    for name in ways:
        torch._dynamo.reset()
        metrics.reset()
        compiled_as(name, program)(x)
        found[name] = metrics.generated_kernel_count
    return found


def ways_for(suite: str, shape: tuple[int, ...]) -> list[str]:
    return [
        name
        for name in WAYS
        if suite not in ("grid", "costly") or len(shape) == 1 or "coop" not in name
    ]


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


SUITES: dict[str, Callable[[], list[Row]]] = {
    "programs": rows,
    "pictures": lambda: rows()[-len(PICTURES) * len(IMAGES) :],
    "grid": grid,
    "costly": costly,
}


def main() -> None:
    """Measure, print, write the record."""
    parser = options(__doc__)
    parser.add_argument("--of", choices=SUITES, default="programs")
    parser.add_argument("--processes", type=int, default=12, help="that compile beforehand")
    parser.add_argument("--part", type=int, help="compile a part of the programs, measure nothing")
    given = parser.parse_args()
    todo = SUITES[given.of]()
    if given.part is not None:
        for name, program, shape, dtype in todo[given.part :: given.processes]:
            count = kernels(program, drawn(shape, dtype), ways_for(given.of, shape))
            sys.stdout.write(json.dumps([name, count]) + "\n")
        return
    command = [sys.executable, __file__, "--of", given.of, f"--processes={given.processes}"]
    parts = [
        subprocess.Popen([*command, f"--part={part}"], stdout=subprocess.PIPE, text=True)
        for part in range(given.processes)
    ]
    counts = dict(json.loads(line) for part in parts for line in part.communicate()[0].splitlines())
    keep = keeper(__doc__, given.json)
    for name, program, shape, dtype in todo:
        if name not in counts or len(set(counts[name].values())) == 1:
            continue  # the same kernels each way
        try:
            times = compared(program, drawn(shape, dtype), ways_for(given.of, shape))
        except AssertionError as error:
            keep(name, {"wrong": str(error)})
        else:
            keep(name, {"microseconds": times, "kernels": counts[name]})


if __name__ == "__main__":
    main()
