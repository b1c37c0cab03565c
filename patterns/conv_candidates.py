"""What Inductor does with a convolution and what is element-wise behind it, to be timed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fusepass.graph.epilogue import evaluate, parse
from fusepass.kernels.gemm_unfused import behind
from fusepass.tune import INDUCTOR, Candidate, ConvRegionProblem


def inductors(problem: ConvRegionProblem) -> Candidate:
    """The library's kernel, and one element-wise kernel if anything follows."""
    unfused = partial(_unfused, problem=problem)
    return Candidate(INDUCTOR, unfused, traced=partial(_traced, problem=problem))


def _convolved(x: Tensor, weight: Tensor, problem: ConvRegionProblem) -> Tensor:
    made: Tensor = torch.ops.aten.convolution.default(
        x, weight, None, *map(list, problem.sizes), False, [0, 0], problem.groups
    )
    return made.permute(0, 2, 3, 1).reshape(-1, problem.n)


def _unfused(x: Tensor, weight: Tensor, *operands: Tensor, problem: ConvRegionProblem) -> Any:
    made, text = _convolved(x, weight, problem), problem.epilogue.text()
    return behind([made], operands, text) if parse(text).steps else made


def _traced(x: Tensor, weight: Tensor, *operands: Tensor, problem: ConvRegionProblem) -> Any:
    return evaluate(problem.epilogue, [_convolved(x, weight, problem).float()], operands)
