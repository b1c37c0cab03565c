"""A GEMM region as the tuner sees it, and random inputs for it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fusepass.graph.epilogue import Epilogue
from fusepass.tune.problem import Problem, rounded

_GENERATION = 3  # of our kernels: what was slower than Inductor's with older ones is timed again


@dataclass(frozen=True)
class RegionProblem(Problem):
    """A GEMM, or a gated pair, with an epilogue; ``activation`` is the epilogue's digest.

    ``op`` is ``gemm`` or ``gated_gemm``; ``gemm_or_library`` where a library's kernel is a
    candidate, too: an answer of one of these questions may be none of the other's.

    Attributes:
        epilogue: what follows the products.
        apart: of a packed pair, elements between the beginnings of both weights; else None.
        batches: of matrices; None where x has two dimensions.
    """

    epilogue: Epilogue = field(default=Epilogue(1, (), (), ()))
    apart: int | None = None
    batches: int | None = None

    def key(self, mode: str) -> str:
        """The class of problems: like :meth:`Problem.key`, with the epilogue's digest."""
        packed = "" if self.apart is None else "packed"
        if self.apart is not None and self.apart < max(self.weight_strides):
            packed = "interleaved"
        kinds = ",".join(one.kind for one in self.epilogue.operands)
        many = "" if self.batches is None else f"{self.batches} of "
        parts = [
            self.op + packed,
            self.activation,
            kinds or "none",
            str(self.dtype).removeprefix("torch."),
            self.layout,
            f"{many}{rounded(self.m)}x{self.k}x{self.n}",
            f"kernels {_GENERATION}",
        ]
        if mode.startswith("max-autotune"):
            parts.append("max-autotune")
        return "/".join(parts)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random x, weights (K, N) and operands, on the device and with the problem's strides."""
        m, n, k = self.m, self.n, self.k

        def noise(*shape: int, scale: float = 1.0, dtype: torch.dtype = self.dtype) -> Tensor:
            data = torch.empty(*shape, dtype=torch.float32, device=self.device)
            data.normal_(0.0, scale, generator=generator)
            return data > 0 if dtype is torch.bool else data.to(dtype)

        batches = self.batches or 1
        scale = 1 / math.sqrt(max(k, 1))
        products = self.epilogue.products

        def matrices(
            sizes: tuple[int, int], strides: tuple[int, int], scale: float, *starts: int
        ) -> list[Tensor]:
            last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
            extent = max(1 + last + max(starts), 0)
            if self.batches is None:
                whole = noise(extent, scale=scale)
                return [whole.as_strided(sizes, strides, start) for start in starts]
            extent = -(-extent // 64) * 64  # every batch begins where a line of memory does
            whole, of_all = noise(batches * extent, scale=scale), (batches, *sizes)
            return [whole.as_strided(of_all, (extent, *strides), start) for start in starts]

        (x,) = matrices((m, k), self.x_strides, 1.0, 0)
        starts = [(0,)] * products if self.apart is None else [(0, self.apart)]
        weights = [w for of in starts for w in matrices((k, n), self.weight_strides, scale, *of)]
        m *= batches
        shapes = {"row": (n,), "column": (m, 1), "full": (m, n), "scalar": ()}
        operands = [
            noise(*shapes[one.kind], dtype=getattr(torch, one.dtype))
            for one in self.epilogue.operands
        ]
        return (x, *weights, *operands)

    @property
    def bytes_needed(self) -> int:
        """Of the inputs (in fp32 while they are drawn) and the results."""
        products = self.epilogue.products
        full = sum(one.kind == "full" for one in self.epilogue.operands)
        results = products + full + len(self.epilogue.outputs)
        each = self.m * self.k + products * self.k * self.n + results * self.m * self.n
        return 6 * (self.batches or 1) * each


def digest(epilogue: Epilogue) -> str:
    """A short name of an epilogue, equal for equal ones."""
    return hashlib.sha256(epilogue.text().encode()).hexdigest()[:12]
