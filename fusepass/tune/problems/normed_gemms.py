"""Products of one normalised row as the tuner sees them, and random inputs for them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.tune.problems.base import Problem
from fusepass.tune.problems.gemm import random_operands


@dataclass(frozen=True)
class NormedProblem(Problem):
    """Products of the norm of x (1, k) with weights (k, n) of some widths n; ``n`` is their sum.

    Attributes:
        widths: columns of each product.
        epilogues: one of all products, or one for each.
        norm: of x.
        gain: dtype of its weight.
        shift: of what it adds, if it adds something.
        beside: whether Inductor would compute another norm of the row in the same kernel.
        generation: of our kernels and of what counts against them: choices of older ones are left.
    """

    generation: ClassVar[int] = 4
    widths: tuple[int, ...] = ()
    epilogues: tuple[Epilogue, ...] = ()
    norm: Norm = field(default=Norm(1e-6))
    gain: torch.dtype = torch.bfloat16
    shift: torch.dtype | None = None
    beside: bool = False

    @property
    def after_reads(self) -> bool:
        """Always: it has one row."""
        return True

    def key(self, mode: str) -> str:
        """The class of problems: all widths, and a digest of the norm and the epilogues."""
        texts = " ".join([self.norm.text(), *(one.text() for one in self.epilogues)])
        parts = [
            self.op,
            hashlib.sha256(texts.encode()).hexdigest()[:12],
            *(str(one).removeprefix("torch.") for one in (self.dtype, *self._vectors)),
            f"{self.layout},{self.weight_strides[1]}",
            f"{self.m}x{self.k}x{'+'.join(map(str, self.widths))}",
            f"kernels {self.generation}" + "/beside another" * self.beside,
        ]
        if mode.startswith("max-autotune"):
            parts.append("max-autotune")
        return "/".join(parts)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random x, weights (k, n), vectors and operands, on the device, as they are read."""

        def matrix(rows: int, apart: int, scale: float) -> Tensor:
            whole = torch.empty(rows, max(apart, self.k), device=self.device)
            return whole.normal_(0.0, scale, generator=generator).to(self.dtype)[:, : self.k]

        scale = 1 / math.sqrt(self.k)
        weights = [matrix(n, self.weight_strides[1], scale).t() for n in self.widths]
        vectors = [
            torch.empty(self.k, device=self.device).normal_(1.0, 0.1, generator=generator).to(kind)
            for kind in self._vectors
        ]
        widths = self.widths if len(self.epilogues) == len(self.widths) else self.widths[:1]
        operands = [
            operand
            for n, epilogue in zip(widths, self.epilogues, strict=True)
            for operand in random_operands(epilogue, self.m, n, self.device, generator)
        ]
        return (matrix(self.m, self.k, 1.0), *weights, *vectors, *operands)

    @property
    def _vectors(self) -> tuple[torch.dtype, ...]:
        """Dtypes of the norm's gain and shift."""
        return (self.gain,) if self.shift is None else (self.gain, self.shift)

    @property
    def bytes_needed(self) -> int:
        """Bytes of the inputs (in fp32 while they are drawn) and of the results."""
        most = max(len(one.outputs) + len(one.operands) for one in self.epilogues)
        return 6 * (self.n * self.weight_strides[1] + 3 * self.k + most * self.m * self.n)
