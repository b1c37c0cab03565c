"""What can compute products of one normalised row, for the tuner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import evaluate
from fusepass.fusion.kernel_ir.norm import normalize
from fusepass.kernels.gemm import normed_gemms as kernel
from fusepass.kernels.gemm import op, sibling_gemms
from fusepass.kernels.gemm.baseline import unfused
from fusepass.kernels.gemm.norm_baseline import normalise
from fusepass.kernels.gemm.tiles import Tile
from fusepass.tune import INDUCTOR, Candidate, NormedProblem

APART = "norm apart, "
"""How the names of candidates begin that leave the norm to Inductor."""

# Microseconds that count against us for the norm's launch, which is timed slower behind another
# than it is in a CUDA graph.
_LAUNCH = 1.0
# And half of what a norm takes where Inductor computes two of a row in one kernel: taking one of
# them saves nothing, taking both one kernel.
_HALF = 1.0


def candidates(
    problem: NormedProblem, apart: Iterable[Tile], ring: Tile | None = None
) -> tuple[Candidate, ...]:
    """Inductor's norm with its products and with ours, and both in one kernel.

    Args:
        problem: to be computed.
        apart: the tiles that rules that are on would time for the products alone.
        ring: of the kernel for one row in CUDA C++, where it takes the products.
    """
    tiles = kernel.choices(problem.norm, problem.epilogues)
    tiles = tiles if ring is None else (ring, *tiles)
    traced = partial(_reference, problem=problem)
    found = [Candidate(INDUCTOR, partial(_unfused, problem=problem), graphable=traced)]
    for tile in apart:
        ours = partial(_run_norm_apart, problem=problem, tile=tile)
        found.append(Candidate(APART + tile.name, ours, compiles=True))
    for tile in tiles:
        ours = partial(_ours, problem=problem, tile=tile)
        found.append(
            Candidate(tile.name, ours, compiles=True, overhead_us=_LAUNCH + _HALF * problem.beside)
        )
    return tuple(found)


def _ours(x: Tensor, *rest: Tensor, problem: NormedProblem, tile: Tile) -> list[Tensor]:
    count = len(problem.widths)
    text = kernel.text_of(problem.norm, problem.epilogues)
    return kernel.launch(x, rest[:count], rest[count:], text, tile)


def _split_operands(
    rest: Sequence[Tensor], problem: NormedProblem
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """Weights, the norm's vectors, and what the epilogues read."""
    first = len(problem.widths)
    behind = first + problem.norm.vectors
    return rest[:first], rest[first:behind], rest[behind:]


def _run_norm_apart(x: Tensor, *rest: Tensor, problem: NormedProblem, tile: Tile) -> list[Tensor]:
    epilogues = problem.epilogues
    weights, vectors, operands = _split_operands(rest, problem)
    rows = normalise(x, vectors, problem.norm)
    if len(epilogues) == 1:
        return op.launch(rows, weights, operands, epilogues[0].text(), tile)
    return sibling_gemms.launch(rows, weights, operands, sibling_gemms.text_of(epilogues), tile)


def _unfused(x: Tensor, *rest: Tensor, problem: NormedProblem) -> list[Tensor]:
    epilogues = problem.epilogues
    weights, vectors, operands = _split_operands(rest, problem)
    rows = normalise(x, vectors, problem.norm)
    if len(epilogues) < len(weights):
        return unfused(rows, weights, operands, epilogues[0].text())
    each = sibling_gemms.split_operands(weights, operands, epilogues)
    return [made for w, given, one in each for made in unfused(rows, [w], given, one.text())]


def _reference(x: Tensor, *rest: Tensor, problem: NormedProblem) -> list[Tensor]:
    epilogues = problem.epilogues
    weights, vectors, operands = _split_operands(rest, problem)
    rows = normalize(x, vectors, problem.norm).to(x.dtype)
    if len(epilogues) < len(weights):
        return evaluate(epilogues[0], [(rows @ w).float() for w in weights], operands)
    each = sibling_gemms.split_operands(weights, operands, epilogues)
    return [made for w, given, one in each for made in evaluate(one, [(rows @ w).float()], given)]
