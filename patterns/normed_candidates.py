"""What can compute products of one normalised row, for the tuner."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from fusepass.graph.epilogue import evaluate
from fusepass.graph.norm import normalised
from fusepass.kernels import gemm_region, sibling_gemms
from fusepass.kernels import normed_gemms as kernel
from fusepass.kernels.gemm_tiles import Tile
from fusepass.kernels.gemm_unfused import unfused
from fusepass.kernels.norm_unfused import normalise
from fusepass.tune import INDUCTOR, Candidate, NormedProblem

APART = "norm apart, "
"""How the names of candidates begin that leave the norm to Inductor."""

# Microseconds that count against us for the norm's launch, which is timed slower behind another
# than it is in a CUDA graph.
_LAUNCH = 1.0


def candidates(problem: NormedProblem, apart: bool = True) -> tuple[Candidate, ...]:
    """Inductor's norm with its products and with ours, and both in one kernel.

    Args:
        problem: to be computed.
        apart: whether a rule is on that would take the products alone.
    """
    tiles = kernel.choices(problem.epilogues)
    traced = partial(_traced, problem=problem)
    found = [Candidate(INDUCTOR, partial(_unfused, problem=problem), traced=traced)]
    for tile in tiles if apart else ():
        ours = partial(_apart, problem=problem, tile=tile)
        found.append(Candidate(APART + tile.name, ours, compiles=True))
    for tile in tiles:
        ours = partial(_ours, problem=problem, tile=tile)
        found.append(Candidate(tile.name, ours, compiles=True, besides=_LAUNCH))
    return tuple(found)


def _ours(x: Tensor, *rest: Tensor, problem: NormedProblem, tile: Tile) -> list[Tensor]:
    count = len(problem.widths)
    text = kernel.text_of(problem.norm, problem.epilogues)
    return kernel.launch(x, rest[:count], rest[count:], text, tile)


def _apart(x: Tensor, *rest: Tensor, problem: NormedProblem, tile: Tile) -> list[Tensor]:
    count, epilogues = len(problem.widths), problem.epilogues
    weights, operands = rest[:count], rest[count + 1 :]
    rows = normalise(x, rest[count], problem.norm)
    if len(epilogues) == 1:
        return gemm_region.launch(rows, weights, operands, epilogues[0].text(), tile)
    return sibling_gemms.launch(rows, weights, operands, sibling_gemms.text_of(epilogues), tile)


def _unfused(x: Tensor, *rest: Tensor, problem: NormedProblem) -> list[Tensor]:
    count, epilogues = len(problem.widths), problem.epilogues
    weights, operands = rest[:count], rest[count + 1 :]
    rows = normalise(x, rest[count], problem.norm)
    if len(epilogues) < count:
        return unfused(rows, weights, operands, epilogues[0].text())
    each = sibling_gemms.parted(weights, operands, epilogues)
    return [made for w, given, one in each for made in unfused(rows, [w], given, one.text())]


def _traced(x: Tensor, *rest: Tensor, problem: NormedProblem) -> list[Tensor]:
    count, epilogues = len(problem.widths), problem.epilogues
    weights, operands = rest[:count], rest[count + 1 :]
    rows = normalised(x, rest[count], problem.norm).to(x.dtype)
    if len(epilogues) < count:
        return evaluate(epilogues[0], [(rows @ w).float() for w in weights], operands)
    each = sibling_gemms.parted(weights, operands, epilogues)
    return [made for w, given, one in each for made in evaluate(one, [(rows @ w).float()], given)]
