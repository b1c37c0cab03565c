"""A pooling with the pointwise work on either side as the tuner sees it, and a random image."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fusepass.kernels.pointwise.pool_source import PoolShape
from fusepass.tune.problems.base import Problem, next_power_of_two

_GENERATION = 1  # of our kernel: what was slower than Inductor's with an older one is timed again
_ONE = 1, 1
_NOTHING = PoolShape(True, _ONE, _ONE, _ONE, _ONE, (0, 0), 0, "float32", "float32")


@dataclass(frozen=True)
class PoolProblem(Problem):
    """``m`` planes, ``n`` numbers of the result of each, ``k`` numbers in a window.

    Attributes:
        shape: of a plane.
        before, behind: texts of what is done to each number of the image and of the result.
    """

    shape: PoolShape = _NOTHING
    before: str = ""
    behind: str = ""

    def key(self, mode: str) -> str:
        """The class of problems: the number of planes is rounded up."""
        shape = self.shape
        pairs = shape.image, shape.kernel, shape.stride, shape.padding
        around = hashlib.sha256(f"{self.before}\n{self.behind}".encode()).hexdigest()[:12]
        parts = [
            "max_pool" if shape.largest else f"average_pool_of_{shape.divisor}",
            around,
            f"{shape.given} {shape.made}",
            f"{next_power_of_two(self.m)} of "
            + " ".join("x".join(map(str, pair)) for pair in pairs),
            f"kernels {_GENERATION}",
        ]
        if mode.startswith("max-autotune"):
            parts.append("max-autotune")
        return "/".join(parts)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """A random image on the device."""
        dtype = getattr(torch, self.shape.given)
        image = torch.empty(self.m, *self.shape.image, dtype=dtype, device=self.device)
        return (image.normal_(generator=generator),)

    @property
    def bytes_needed(self) -> int:
        """Bytes of the image and the results."""
        return 4 * self.m * (math.prod(self.shape.image) + 2 * math.prod(self.shape.result))
