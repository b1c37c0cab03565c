"""What can compute several GEMMs of one operand, for the tuner: Inductor's kernels, and ours."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import evaluate
from fusepass.kernels.gemm import sibling_gemms as kernel
from fusepass.kernels.gemm.baseline import unfused
from fusepass.kernels.gemm.tiles import Tile, shared_memory
from fusepass.tune import INDUCTOR, Candidate, SiblingProblem

# Microseconds that count against us for each product but one. Launches behind one another are timed
# too slow, on an H200 by 1 to 4 µs for three products against a CUDA graph's; in a model whose
# weights are in L2 they take yet less, and one was not faster where 5 µs had been measured.
_LAUNCH = 2.5


def candidates(problem: SiblingProblem, every: bool) -> tuple[Candidate, ...]:
    """One GEMM after another, as Inductor has them, and our kernel with some tiles.

    Args:
        problem: to be computed.
        every: ask for more tiles than those that were best elsewhere.
    """
    besides = _LAUNCH * (len(problem.widths) - 1)
    made = [
        Candidate(
            one.name, partial(_ours, problem=problem, tile=one), compiles=True, overhead_us=besides
        )
        for one in timed_tiles(problem.m, problem.device, problem.dtype.itemsize, every)
    ]
    theirs = partial(_unfused, problem=problem)
    return Candidate(INDUCTOR, theirs, graphable=partial(_reference, problem=problem)), *made


def timed_tiles(m: int, device: torch.device, itemsize: int = 2, every: bool = False) -> list[Tile]:
    """The tiles that are timed on a device, for m rows of numbers of some bytes."""
    memory = shared_memory(device)
    found = [one for one in kernel.choices(m, itemsize) if one.bytes_in_flight(1) <= memory]
    return found if every else found[: kernel.TIMED]


def _ours(x: Tensor, *rest: Tensor, problem: SiblingProblem, tile: Tile) -> list[Tensor]:
    count = len(problem.widths)
    text = kernel.text_of(problem.epilogues)
    return kernel.launch(x, rest[:count], rest[count:], text, tile)


def _unfused(x: Tensor, *rest: Tensor, problem: SiblingProblem) -> list[Tensor]:
    count = len(problem.widths)
    each = kernel.split_operands(rest[:count], rest[count:], problem.epilogues)
    return [made for w, given, one in each for made in unfused(x, [w], given, one.text())]


def _reference(x: Tensor, *rest: Tensor, problem: SiblingProblem) -> list[Tensor]:
    count = len(problem.widths)
    each = kernel.split_operands(rest[:count], rest[count:], problem.epilogues)
    return [made for w, given, one in each for made in evaluate(one, [(x @ w).float()], given)]
