"""Several GEMMs of one operand as the tuner sees them, and random inputs for them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.tune.problems.base import Problem, in_tf32, next_power_of_two
from fusepass.tune.problems.gemm import random_operands

_ONE_ROW = 4  # generations more than of several rows


@dataclass(frozen=True)
class SiblingProblem(Problem):
    """Products of x (m, k) with weights (k, n) of several widths n; in the base's ``n`` their sum.

    Attributes:
        widths: columns of each product.
        epilogues: what follows each.
        generation: of our kernels and of what counts against them: choices of older ones are left.
    """

    generation: ClassVar[int] = 1  # of half types; in TF32, and of one row, there came others
    widths: tuple[int, ...] = ()
    epilogues: tuple[Epilogue, ...] = ()

    def key(self, mode: str) -> str:
        """The class of problems: rows rounded, all widths, and a digest of the epilogues."""
        texts = " ".join(one.text() for one in self.epilogues)
        parts = [
            self.op,
            hashlib.sha256(texts.encode()).hexdigest()[:12],
            str(self.dtype).removeprefix("torch."),
            self.layout,
            f"{next_power_of_two(self.m)}x{self.k}x{'+'.join(map(str, self.widths))}",
            f"kernels {self._kernels()}",
        ]
        if mode.startswith("max-autotune"):
            parts.append("max-autotune")
        return "/".join(parts)

    def _kernels(self) -> int:
        """Their generation, which is another in TF32 and of one row."""
        return self.generation + (self.dtype is torch.float32) + _ONE_ROW * (self.m == 1)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random x, weights (k, n) and operands, on the device, as they are read: along k."""

        def matrix(rows: int, columns: int, apart: int, scale: float) -> Tensor:
            whole = torch.empty(rows, max(apart, columns), device=self.device)
            return whole.normal_(0.0, scale, generator=generator).to(self.dtype)[:, :columns]

        x = matrix(self.m, self.k, self.x_strides[0], 1.0)
        scale = 1 / math.sqrt(max(self.k, 1))
        weights = [matrix(n, self.k, self.weight_strides[1], scale).t() for n in self.widths]
        operands = [
            operand
            for n, epilogue in zip(self.widths, self.epilogues, strict=True)
            for operand in random_operands(epilogue, self.m, n, self.device, generator)
        ]
        return (x, *weights, *operands)

    @property
    def may_be_tf32(self) -> bool:
        """Whether its products may be TF32."""
        return in_tf32(self.dtype)

    @property
    def bytes_needed(self) -> int:
        """Bytes of the inputs (in fp32 while they are drawn) and of the results."""
        read = self.m * self.x_strides[0] + self.n * self.weight_strides[1]
        most = max(len(one.outputs) + len(one.operands) for one in self.epilogues)
        return 6 * (read + most * self.m * self.n)
