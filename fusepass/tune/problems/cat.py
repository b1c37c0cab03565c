"""Concatenated tensors, each of which is computed, as the tuner sees them, and random ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusepass.tune.problems.base import Problem, next_power_of_two


@dataclass(frozen=True)
class CatProblem(Problem):
    """``k`` tensors, of which ``m`` rows of ``n`` numbers come out."""

    def key(self, mode: str) -> str:
        """The class of problems: rows, numbers in one and how many tensors, all rounded up."""
        k, m, n = map(next_power_of_two, (self.k, self.m, self.n))
        parts = ["cat", str(self.dtype).removeprefix("torch."), f"{k} of {m}x{n}"]
        if mode.startswith("max-autotune"):
            parts.append("max-autotune")
        return "/".join(parts)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random tensors on the device, of equal sizes."""
        shape = self.m, max(self.n // self.k, 1)
        made = (torch.empty(shape, dtype=self.dtype, device=self.device) for _ in range(self.k))
        return tuple(one.normal_(generator=generator) for one in made)

    @property
    def bytes_needed(self) -> int:
        """Bytes of the tensors and the result."""
        return 2 * self.m * max(self.n, self.k) * self.dtype.itemsize
