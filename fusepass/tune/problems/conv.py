"""Problems on images as the tuner sees them, and random inputs for each.

Convolutions (with bias, residual and ReLU; with any epilogue; depthwise), poolings, concatenations.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.pointwise.pool_source import PoolShape
from fusepass.tune.problems.base import Problem, joined_key, next_power_of_two
from fusepass.tune.problems.gemm import random_operands


@dataclass(frozen=True)
class ConvProblem(Problem):
    """A convolution as a GEMM: m pixels of the result, n channels, k numbers behind each of them.

    Attributes:
        images: (B, C, H, W) of its input, channels last.
        kernel: (O, C / groups, h, w) of its weight, channels last.
        sizes: stride, padding, dilation.
        groups: of channels.
        residual: whether a tensor of the result's shape is added.
    """

    images: tuple[int, int, int, int] = (1, 1, 1, 1)
    kernel: tuple[int, int, int, int] = (1, 1, 1, 1)
    sizes: tuple[tuple[int, ...], ...] = ()
    groups: int = 1
    residual: bool = False

    def key(self, mode: str) -> str:
        """The class of problems: batches are rounded up, as rows are for a GEMM."""
        batch, *image = self.images
        parts = [
            self.op + "_residual" * self.residual,
            self.activation,
            str(self.dtype).removeprefix("torch."),
            "x".join(map(str, (next_power_of_two(batch), *image))),
            "x".join(map(str, self.kernel)),
            " ".join("x".join(map(str, one)) for one in self.sizes),
            f"groups {self.groups}",
        ]
        if self.dtype is torch.float32:
            parts.append("tf32" if torch.backends.cudnn.allow_tf32 else "ieee")
        if torch.backends.cudnn.benchmark:
            parts.append("benchmark")
        return joined_key(parts, mode)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random x, weight, bias and maybe a residual, channels last, on the device."""

        def noise(sizes: Sequence[int], scale: float = 1.0) -> Tensor:
            data = torch.empty(*sizes, dtype=self.dtype, device=self.device)
            data.normal_(0.0, scale, generator=generator)
            last = torch.channels_last if len(sizes) == len(self.images) else None
            return data if last is None else data.contiguous(memory_format=last)

        x = noise(self.images)
        weight = noise(self.kernel, 1 / math.sqrt(max(self.k, 1)))
        given = [x, weight, noise([self.n])]
        return (*given, noise(self.result)) if self.residual else tuple(given)

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        pairs = zip(self.images[2:], self.kernel[2:], *self.sizes, strict=True)
        sides = [
            (side + 2 * padding - dilation * (width - 1) - 1) // stride + 1
            for side, width, stride, padding, dilation in pairs
        ]
        return (self.images[0], self.kernel[0], *sides)

    @property
    def bytes_needed(self) -> int:
        """Bytes of the inputs, in two orders while they are drawn, and of the results."""
        counts = 2 * math.prod(self.images) + 2 * math.prod(self.kernel)
        return self.dtype.itemsize * (counts + 5 * math.prod(self.result))


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
        """Bytes of the inputs (in fp32 while they are drawn) and of the results."""
        full = sum(one.kind == "full" for one in self.epilogue.operands)
        results = 4 * math.prod(self.result) * (2 * full + len(self.epilogue.outputs))
        return super().bytes_needed + results


@dataclass(frozen=True)
class DepthwiseProblem(ConvRegionProblem):
    """Its weight has one plane for each channel, one behind the other."""

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Likewise, with the weight in order."""
        x, weight, *operands = super().inputs(generator)
        return (x, weight.contiguous(), *operands)


# --- A pooling with the pointwise work on either side as the tuner sees it, and a random image ----

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
        return joined_key(parts, mode)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """A random image on the device."""
        dtype = getattr(torch, self.shape.given)
        image = torch.empty(self.m, *self.shape.image, dtype=dtype, device=self.device)
        return (image.normal_(generator=generator),)

    @property
    def bytes_needed(self) -> int:
        """Bytes of the image and the results."""
        return 4 * self.m * (math.prod(self.shape.image) + 2 * math.prod(self.shape.result))


# --- Concatenated tensors, each of which is computed, as the tuner sees them, and random ones -----


@dataclass(frozen=True)
class CatProblem(Problem):
    """``k`` tensors, of which ``m`` rows of ``n`` numbers come out."""

    def key(self, mode: str) -> str:
        """The class of problems: rows, numbers in one and how many tensors, all rounded up."""
        k, m, n = map(next_power_of_two, (self.k, self.m, self.n))
        parts = ["cat", str(self.dtype).removeprefix("torch."), f"{k} of {m}x{n}"]
        return joined_key(parts, mode)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random tensors on the device, of equal sizes."""
        shape = self.m, max(self.n // self.k, 1)
        made = (torch.empty(shape, dtype=self.dtype, device=self.device) for _ in range(self.k))
        return tuple(one.normal_(generator=generator) for one in made)

    @property
    def bytes_needed(self) -> int:
        """Bytes of the tensors and the result."""
        return 2 * self.m * max(self.n, self.k) * self.dtype.itemsize
