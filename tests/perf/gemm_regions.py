"""Kernels of GEMM regions against their floors: bars 1 and 2 of issue 6, in at most 120 s of an H200.

    python tests/perf/gemm_regions.py --json gemm-region.json

Device times from CUDA events, L2-cold, in interleaved rounds, medians, microseconds, bfloat16.

``linear``: ``act(x @ w + bias)`` against ``addmm`` with the same bias (for ``residual``, ``addmm``
with a full C). ``gated``: ``act(x @ w) * (x @ v)`` of separate weights and of one packed weight,
against one cuBLAS GEMM with the merged weight and no activation. ``few``: the gated first half, the
down-projection with a residual, and a product alone, at up to 64 rows, against the time of reading
the weights once. ``unfused`` is what Inductor does by default: the GEMMs, then one kernel.

``--ship`` writes what was faster into a table of choices that comes with the package.

Predictions, written before the run with the committed kernels (H200, torch 2.11), from what their
prototypes took:
- linear, ping-pong: 0.94 to 1.05 of addmm; GELU (erf) 1.07 at K = 1024 and 1.15 at K = 768.
- linear, 256 rows: 1.06 (ReLU) to 1.13; 2048x1024->1024 by plain loads: 1.08 (ReLU) to 1.25.
- gated: 0.94 to 1.02 of the merged GEMM, 256 rows 1.05.
- few: one row 1.03 of the limit, 16 rows 1.05, 64 rows 1.10, as before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fusepass.bench.hardware import heading
from fusepass.fusion.gemm.grow import is_gemm, region_at
from fusepass.fusion.kernel_ir.epilogue import Epilogue, Output
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.baseline import unfused
from fusepass.kernels.gemm.tile_heuristic import heuristic_tiles
from fusepass.kernels.gemm.tiles import shared_memory, tiles
from fusepass.tune import INDUCTOR, ChoiceEntry, GemmRegionProblem
from fusepass.tune.decide import winner
from fusepass.tune.problems.gemm import digest
from fusepass.tune.table import ChoiceTable, parse
from fusepass.tune.timing import Samples, time_on_device
from tests.perf.suites.linear import ACTIVATIONS, FEED_FORWARD, ROWS

FEW = (1, 2, 16, 32, 64)
SECONDS = 0.12
DEVICE = torch.device("cuda")


def epilogue_of(program: Callable[..., Tensor], *shapes: tuple[int, ...], pairs: bool) -> Epilogue:
    """The epilogue of the region that a program of half-precision tensors is."""
    given = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
    graph = make_fx(program, select_decomp_table(), tracing_mode="fake")(*given).graph
    return region_at(next(filter(is_gemm, graph.nodes)), pairs=pairs).epilogue


def _linear(act: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x, w, b: act(torch.addmm(b, x, w))


def _gated(act: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x, w, v: act(x @ w) * (x @ v)


def noise(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * scale


def ours(
    epilogue: Epilogue, x: Tensor, weights: list[Tensor], operands: list[Tensor], *, all_tiles: bool
) -> dict[str, Callable[[], Any]]:
    """The likely tiles' kernels, or all for many rows, checked against the reference."""
    m, n = x.shape[0], weights[0].shape[1]
    every = tiles(epilogue, shared_memory(DEVICE))
    named = {name: tile for name, tile in every.items() if tile.takes(m, weights, epilogue)}
    text, exact = epilogue.text(), kernel.reference(x, weights, operands, epilogue)
    found: dict[str, Callable[[], Any]] = {}
    some = [name for name in named if not named[name].plain] if all_tiles else []
    older = {name: tile for name, tile in named.items() if tile.language == "triton"}
    both = chain.from_iterable(
        heuristic_tiles(of, epilogue.products, m, n, x.shape[1]) for of in (named, older)
    )
    for name in some or dict.fromkeys(both):
        got = kernel.launch(x, weights, operands, text, named[name])
        for mine, theirs in zip(got, exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
        found[name] = lambda tile=named[name]: kernel.launch(x, weights, operands, text, tile)
    found["unfused"] = lambda: unfused(x, weights, operands, text)
    return found


def linear(m: int, k: int, n: int, *, all_tiles: bool) -> dict[str, dict[str, float]]:
    """One product with each epilogue, all in one run."""
    x, w, bias, residual = noise(m, k), noise(n, k, scale=k**-0.5).t(), noise(n), noise(m, n)
    calls: dict[str, Callable[[], Any]] = {
        "addmm": lambda: torch.addmm(bias, x, w),
        "addmm, full C": lambda: torch.addmm(residual, x, w),
    }
    problems = {}
    for name, act in ACTIVATIONS.items():
        epilogue = epilogue_of(_linear(act), (m, k), (k, n), (n,), pairs=False)
        problems[name] = problem_of(epilogue, x, [w])
        calls |= {
            f"{name} {key}": run
            for key, run in ours(epilogue, x, [w], [bias], all_tiles=all_tiles).items()
        }
    for name, gelu in (("gelu-tanh", True), ("relu", False)):
        library = partial(torch._addmm_activation, bias, x, w, use_gelu=gelu)
        calls[f"{name} cublaslt"] = library
    epilogue = epilogue_of(lambda x, w, r: F.silu(x @ w) + r, (m, k), (k, n), (m, n), pairs=False)
    problems["silu+residual"] = problem_of(epilogue, x, [w])
    found = ours(epilogue, x, [w], [residual], all_tiles=all_tiles)
    calls |= {f"silu+residual {key}": run for key, run in found.items()}
    return measured(calls, problems)


def gated(m: int, k: int, n: int, *, all_tiles: bool) -> dict[str, dict[str, float]]:
    """A gated pair of separate and of packed weights."""
    x, merged = noise(m, k), noise(2 * n, k, scale=k**-0.5)
    apart = [half.clone().t() for half in merged.chunk(2)]
    packed = list(merged.t().chunk(2, 1))
    calls: dict[str, Callable[[], Any]] = {"merged": lambda: x @ merged.t()}
    problems = {}
    for name in ("silu", "gelu", "gelu-tanh"):
        program = _gated(ACTIVATIONS[name])
        epilogue = epilogue_of(program, (m, k), (k, n), (k, n), pairs=True)
        for how, weights in (("separate", apart), ("packed", packed)):
            problems[f"{name} {how}"] = problem_of(epilogue, x, weights, packed=how == "packed")
            found = ours(epilogue, x, weights, [], all_tiles=all_tiles)
            calls |= {f"{name} {how} {key}": run for key, run in found.items()}
    return measured(calls, problems)


def few(m: int, *, all_tiles: bool) -> dict[str, dict[str, dict[str, float]]]:
    """Up to 64 rows: each with the time of reading the weights once, by the fastest of two ways."""
    width, hidden = 4096, 14336
    x, h, residual = noise(m, width), noise(m, hidden), noise(m, width)
    pair = [noise(hidden, width, scale=width**-0.5).t() for _ in range(2)]
    down, square = noise(width, hidden, scale=hidden**-0.5).t(), noise(6144, width).t()
    found = {}
    for name, program, given, weights, operands in (
        ("silu gated 4096->2x14336", _gated(F.silu), x, pair, []),
        ("14336->4096, residual", lambda x, w, r: x @ w + r, h, [down], [residual]),
        ("4096->6144", None, x, [square * 4096**-0.5], []),
    ):
        shapes = [tuple(one.shape) for one in (given, *weights, *operands)]
        if program is None:
            epilogue = Epilogue(1, (), (), (Output("%0", "bfloat16"),))
        else:
            epilogue = epilogue_of(program, *shapes, pairs=len(weights) == 2)
        flat = torch.cat([one.t() for one in weights])
        calls = {
            "limit: sum": lambda flat=flat: reading(flat),
            "cublas": lambda given=given, flat=flat: given @ flat.t(),
            **ours(epilogue, given, weights, operands, all_tiles=all_tiles),
        }
        found[name] = measured(calls)
    return found


def reading(flat: Tensor) -> None:
    """Read a tensor once, in pieces of 8192 elements; nothing is written."""
    import triton

    pieces = triton.cdiv(flat.numel(), 8192)
    _read()[(pieces,)](flat, flat.numel(), BLOCK=2048, PIECES=4, num_warps=4)


_READ = """
import triton
import triton.language as tl


@triton.jit
def read(p, n, BLOCK: tl.constexpr, PIECES: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for piece in tl.static_range(PIECES):
        at = tl.program_id(0).to(tl.int64) * BLOCK * PIECES + piece * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(p + at, mask=at < n, other=0.0, eviction_policy="evict_first")
    if tl.sum(total, 0) == 123.456:  # never, but the compiler cannot know
        tl.store(p, 0.0)
"""


def _read(made: dict[str, Any] = {}) -> Any:  # noqa: B006  # made once
    if not made:
        made["read"] = kernel.function_of(_READ, "read")
    return made["read"]


def problem_of(
    epilogue: Epilogue, x: Tensor, weights: list[Tensor], *, packed: bool = False
) -> GemmRegionProblem:
    """A region as the tuner is asked for it while a program is compiled."""
    first, last = weights[0], weights[-1]
    return GemmRegionProblem(
        op="gated_gemm" if len(weights) == 2 else "gemm",
        activation=digest(epilogue),
        bias=False,
        dtype=x.dtype,
        m=x.shape[0],
        n=first.shape[1],
        k=x.shape[1],
        x_strides=x.stride(),
        weight_strides=first.stride(),
        device=DEVICE,
        epilogue=epilogue,
        apart=last.storage_offset() - first.storage_offset() if packed else None,
    )


SHIPPED: dict[str, ChoiceEntry] = {}


def measured(
    calls: dict[str, Callable[[], Any]],
    problems: Mapping[str, GemmRegionProblem] = MappingProxyType({}),
) -> dict[str, Any]:
    """Medians in microseconds; choices for the table that is shipped."""
    samples = time_on_device(calls, DEVICE, SECONDS)
    for name, problem in problems.items():
        rounds = {INDUCTOR: samples.rounds[f"{name} unfused"]}
        for key, times in samples.rounds.items():
            tile = key.removeprefix(f"{name} ")
            if tile not in (key, "unfused", "cublaslt"):
                rounds[tiles(problem.epilogue)[tile].candidate] = times
        keep(problem, Samples(rounds))
        if f"{name} cublaslt" in samples.rounds:
            both = {**rounds, "cublaslt": samples.rounds[f"{name} cublaslt"]}
            keep(replace(problem, op=f"{problem.op}_or_library"), Samples(both))
    return {name: round(time, 2) for name, time in samples.medians().items()}


def keep(problem: GemmRegionProblem, samples: Samples) -> None:
    """For the table that is shipped."""
    times = {key: round(time, 1) for key, time in samples.medians().items()}
    SHIPPED[problem.key("default")] = ChoiceEntry(winner(samples), times, "shipped")


def ship(path: Path) -> None:
    """Put the choices in place of those of the same problems in a table."""
    held = parse(path.read_text("utf-8"), torch.cuda.get_device_name())[1] if path.exists() else {}
    current = {key.rpartition("/kernels ")[2] for key in SHIPPED}
    held = {
        k: v for k, v in held.items() if "/kernels " not in k or k.rpartition(" ")[2] in current
    }
    table = ChoiceTable(torch.cuda.get_device_name(), path, entries={**held, **SHIPPED})
    table.write()


def main() -> int:
    """Measure everything, print a line per row, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ship", type=Path, help="a table of choices, as in fusepass/tune/shipped")
    parser.add_argument("--every", action="store_true", help="all tiles, not only the likely ones")
    parser.add_argument("--only", choices=("linear", "gated", "few"), action="append")
    given = parser.parse_args()
    only = given.only or ["linear", "gated", "few"]
    record: dict[str, Any] = {
        **heading(__doc__, "cuda"),
        "microseconds": {},
    }
    torch.manual_seed(0)
    rows = [("linear", size, linear) for size in ROWS["cuda"] if "linear" in only]
    rows += [("gated", size, gated) for size in FEED_FORWARD if "gated" in only]
    rows += [("few", (m,), few) for m in FEW if "few" in only]
    for suite, size, run in rows:
        found = run(*size, all_tiles=given.every)
        record["microseconds"].setdefault(suite, {})["x".join(map(str, size))] = found
        for name, times in found.items() if suite == "few" else [("", found)]:
            floor = next(iter(times.values()))
            text = ", ".join(f"{key} {time / floor:.3f}" for key, time in times.items())
            sys.stdout.write(f"{suite} {size} {name}: floor {floor:.1f}; {text}\n")
        sys.stdout.flush()
    if given.ship:
        ship(given.ship)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
