"""A convolution with an epilogue as the tuner sees it, and random inputs for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fusepass.graph.epilogue import Epilogue
from fusepass.tune.conv_problem import ConvProblem
from fusepass.tune.region_problem import random_operands


@dataclass(frozen=True)
class ConvRegionProblem(ConvProblem):
    """Like any convolution; ``activation`` is the epilogue's digest.

    Attributes:
        epilogue: what follows the convolution, of (pixels, channels).
        generation: of our kernels: what was slower than Inductor's with older ones is timed again.
    """

    generation: ClassVar[int] = 1
    epilogue: Epilogue = field(default_factory=lambda: Epilogue(1, (), (), ()))

    def key(self, mode: str) -> str:
        """The class of problems, as of other convolutions, with what else is read."""
        kinds = ",".join(one.kind for one in self.epilogue.operands)
        return f"{super().key(mode)}/{kinds or 'none'}/kernels {self.generation}"

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random x and weight, channels last, and operands, on the device."""
        x, weight, *_ = super().inputs(generator)
        batch, channels, height, width = self.result
        rows = batch * height * width
        given = random_operands(self.epilogue, rows, channels, self.device, generator)
        return (x, weight, *given)

    @property
    def bytes_needed(self) -> int:
        """Of the inputs (in fp32 while they are drawn) and the results."""
        full = sum(one.kind == "full" for one in self.epilogue.operands)
        results = 4 * math.prod(self.result) * (2 * full + len(self.epilogue.outputs))
        return super().bytes_needed + results
