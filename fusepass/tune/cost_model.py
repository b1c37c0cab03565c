"""What a GEMM and a pass over memory should take, for when nothing may be timed.

A roofline: the larger of operations over rate and bytes over bandwidth, with the rates that were
measured on the device with random data (datasheet rates are not reached). Devices that are not
listed have no estimate: on them only what was timed there is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fusepass.tune.problems.base import Problem
from fusepass.tune.problems.gemm import GemmRegionProblem

_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Rates:
    """What a device reaches.

    Attributes:
        half_flops: operations per microsecond of bf16 and fp16 products of matrices.
        bandwidth: bytes per microsecond to and from device memory, reads and writes together.
        launch: microseconds from the end of one kernel to the start of the next.
    """

    half_flops: float
    bandwidth: float
    launch: float


RATES = {"NVIDIA H200": Rates(half_flops=7.0e8, bandwidth=3.4e6, launch=1.5)}


def gemm_microseconds(problem: Problem, rates: Rates) -> float:
    """The product alone, bias included."""
    m, n, k = problem.m, problem.n, problem.k
    moved = (m * k + k * n + m * n) * problem.dtype.itemsize
    return max(2 * m * n * k / rates.half_flops, moved / rates.bandwidth) + rates.launch


def pointwise_microseconds(problem: Problem, rates: Rates) -> float:
    """A kernel that reads and writes an (m, n) matrix once."""
    moved = 2 * problem.m * problem.n * problem.dtype.itemsize
    return moved / rates.bandwidth + rates.launch


_FEWEST_ELEMENTS = 6 << 20
_SLOWER = 1.4  # what a kernel of ours may be below the roofline and still be believed to win


def region_microseconds(problem: GemmRegionProblem, rates: Rates, *, fused: bool) -> float | None:
    """One or two products and what follows them: in one kernel of ours, or as Inductor runs them.

    What counts is the ratio: either takes up to two and a half times as long as this says where
    there are few columns. Ours is taken for slower by :data:`_SLOWER`, so that it is believed to
    win only where the pass over memory that it saves is most of the work: products of few columns,
    as those of convolutions, where it won by about what this says, or more. None for small results,
    whose times are latencies.
    """
    m, n, k = problem.m * (problem.batches or 1), problem.n, problem.k
    if m * n < _FEWEST_ELEMENTS:
        return None
    size, products = problem.dtype.itemsize, problem.epilogue.products
    gemms = 1 if problem.apart is not None else products
    full = sum(one.kind == "full" for one in problem.epilogue.operands)
    results = full + len(problem.epilogue.stored)
    weights = products * k * n * (problem.batches or 1)
    multiplied = 2 * m * n * k / rates.half_flops
    if fused:
        moved = (m * k + weights + results * m * n) * size / rates.bandwidth
        return _SLOWER * max(products * multiplied, moved) + rates.launch
    moved = (m * k * gemms + weights + products * m * n) * size / rates.bandwidth
    behind = (products + results) * m * n * size / rates.bandwidth
    return max(products * multiplied, moved) + gemms * rates.launch + behind + rates.launch


def applies_to(problem: Problem) -> bool:
    """Whether the rates say something about a problem."""
    return problem.dtype in _HALF
