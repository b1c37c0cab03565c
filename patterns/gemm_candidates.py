"""What can compute a GEMM region, for the tuner: Inductor's kernels, and ours with some tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue, evaluate, parse
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.baseline import reduce_partial_results, unfused
from fusepass.kernels.gemm.hopper.programmatic_launch import saved_microseconds
from fusepass.kernels.gemm.hopper.tma_plan import by_host
from fusepass.kernels.gemm.tile_heuristic import heuristic_tiles, search_space
from fusepass.kernels.gemm.tiles import Tile, shared_memory, tiles
from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.inductor import kernel_call
from fusepass.tune import INDUCTOR, Candidate
from fusepass.tune.cost_model import region_microseconds


def candidates(
    epilogue: Epilogue,
    m: int,
    n: int,
    k: int,
    *,
    processors: int = 132,
    named: Mapping[str, Tile],
    every: bool = False,
    known: str | None = None,
    scaled: bool = False,
    overlaps: bool = False,
) -> tuple[Candidate, ...]:
    """What Inductor would do, and our kernel with the likely tiles, or with every one there is.

    Args:
        epilogue: of the region.
        m: rows of a product.
        n: its columns.
        k: what is summed over.
        processors: multiprocessors of the device.
        named: the tiles that can compute it, by name.
        every: for max-autotune, which may take its time.
        known: the candidate that was best before.
        scaled: whether the epilogue first scales the products, where Inductor has scaled x.
        overlaps: whether its launch may begin before the kernel in front of it ends.
    """
    text, theirs = epilogue.text(), epilogue.unscaled() if scaled else epilogue
    without = len(epilogue.operands) - len(theirs.operands)
    plain = Candidate(
        INDUCTOR,
        partial(_unfused, epilogue=theirs.text(), products=epilogue.products, without=without),
        graphable=partial(_in_torch, epilogue=theirs, without=without),
        estimate=partial(region_microseconds, fused=False),
    )
    matrices = any(one.kind == "full" for one in epilogue.operands)
    few = partial(heuristic_tiles, named, epilogue.products, m, n, k, processors, matrices=matrices)
    names = search_space(named, m) if every else few()
    weights = 2 * epilogue.products * k * n  # bytes
    best = (known or "").rpartition(" ")[2]
    if best in named and best not in names:
        names.append(best)
    return (
        plain,
        *(
            Candidate(
                named[name].candidate,
                partial(_fused, epilogue=text, tile=named[name]),
                estimate=partial(region_microseconds, fused=True) if name is names[0] else None,
                compiles=True,
                overhead_us=-saved_microseconds(named[name], weights) if overlaps else 0.0,
            )
            for name in names
        ),
    )


def usable(
    x: Tensor,
    weights: Sequence[Tensor],
    operands: Sequence[Tensor],
    epilogue: Epilogue,
    rows: Any,
) -> dict[str, Tile]:
    """The tiles that can compute a region on its device, by name.

    Args:
        x: of the region, fake or not; likewise ``weights`` and ``operands``.
        weights: one or two.
        operands: in the shapes in which they are read.
        epilogue: of the region.
        rows: of a product; a symbol where they vary.
    """
    hosted = by_host((x, *weights, *operands), epilogue)
    in_cuda = nvrtc.is_there() and hosted
    return {
        name: tile
        for name, tile in tiles(epilogue, shared_memory(x.device)).items()
        if tile.takes(rows, weights, epilogue)
        and (tile.language != "gluon" or kernel_call.kernel_calls_tested())  # an own launcher
        and (tile.language != "cuda" or in_cuda)
        and (hosted or not tile.rounds_by_host)
        and not tile.rounds_too_slowly(x.device)
    }


def _split_operands(
    tensors: tuple[Tensor, ...], products: int, without: int = 0
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """x, the weights and the operands, without some of these at their beginning."""
    return tensors[0], tensors[1 : 1 + products], tensors[1 + products + without :]


def _unfused(*tensors: Tensor, epilogue: str, products: int, without: int) -> list[Tensor]:
    return unfused(*_split_operands(tensors, products, without), epilogue)


def _fused(*tensors: Tensor, epilogue: str, tile: Tile) -> list[Tensor]:
    parsed = parse(epilogue)
    outputs = kernel.launch(*_split_operands(tensors, parsed.products), epilogue, tile)
    return reduce_partial_results(parsed, outputs)


def _in_torch(*tensors: Tensor, epilogue: Epilogue, without: int) -> list[Tensor]:
    x, weights, operands = _split_operands(tensors, epilogue.products, without)
    return evaluate(epilogue, [(x @ w).float().flatten(0, -2) for w in weights], operands)
