"""A depthwise convolution with an epilogue as the tuner sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusepass.tune.conv_region_problem import ConvRegionProblem


@dataclass(frozen=True)
class DepthwiseProblem(ConvRegionProblem):
    """Its weight has one plane for each channel, one behind the other."""

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Likewise, with the weight in order."""
        x, weight, *operands = super().inputs(generator)
        return (x, weight.contiguous(), *operands)
