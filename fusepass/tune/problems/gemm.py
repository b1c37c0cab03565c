"""Problems of GEMMs as the tuner sees them, and random inputs for each.

A region of one product, several products of one operand, products of one normalised row.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.tune.problems.base import Problem, in_tf32, joined_key, next_power_of_two

# Generations of our kernels, of which older ones are not taken: what was chosen among those, or
# timed otherwise, is timed again.
_MANY = 10  # of up to 128 rows, too, and of rows that begin anywhere in a line of L2
_FEW = 8  # rows
_ONE = 12  # row
_ROUNDED = 9  # to TF32
_MOST_FEW = 128  # rows
_FEWEST = 64  # up to these no kernel for many rows is timed


def _rows(m: int) -> int:
    """Rows of a class: rounded up to a power of two, or to 96 for the kernels that stream."""
    return 96 if 64 < m <= 96 else next_power_of_two(m)


@dataclass(frozen=True)
class GemmRegionProblem(Problem):
    """A GEMM, or a gated pair, with an epilogue; ``activation`` is the epilogue's digest.

    ``op`` is ``gemm`` or ``gated_gemm``; ``gemm_or_library`` where a library's kernel is a
    candidate, too: an answer of one of these questions may be none of the other's.

    Attributes:
        epilogue: what follows the products.
        apart: of a packed pair, elements between the beginnings of both weights; else None.
        batches: of matrices; None where x has two dimensions.
        batch_strides: of x and of the weights, in elements, if there are batches.
        scaled: whether the products are scaled first, where Inductor has scaled x before.
        varies: whether the number of rows does; streams, which few rows have, have to know it.
        overlaps: whether its launch may begin before the kernel in front of it ends.
    """

    epilogue: Epilogue = field(default=Epilogue(1, (), (), ()))
    apart: int | None = None
    batches: int | None = None
    batch_strides: tuple[int, int] = (0, 0)
    scaled: bool = False
    varies: bool = False
    overlaps: bool = False

    def key(self, mode: str) -> str:
        """The class of problems: like :meth:`Problem.key`, with the epilogue's digest."""
        packed = "" if self.apart is None else "packed"
        if self.apart is not None and self.apart < max(self.weight_strides):
            packed = "interleaved"
        kinds = ",".join(one.kind for one in self.epilogue.operands)
        many = "" if self.batches is None else f"{self._lying()}{self.batches} of "
        parts = [
            self.op + packed + "_of_scaled" * self.scaled,
            self.activation,
            kinds or "none",
            str(self.dtype).removeprefix("torch."),
            self.layout,
            f"{many}{_rows(self.m)}x{self.k}x{self.n}",
            f"kernels {self._generation()}",
        ]
        if self.varies and self.m <= _MOST_FEW:
            parts.append("rows vary")
        if self.overlaps:
            parts.append("overlaps")
        return joined_key(parts, mode)

    def _generation(self) -> int:
        if self.dtype is torch.float32:
            return _ROUNDED
        if self.m == 1 and self.after_reads:
            return _ONE
        return _FEW if self.after_reads and self.m <= _FEWEST else _MANY

    @property
    def after_reads(self) -> bool:
        """Where weights are nearly all that is read and written."""
        return self.m <= _MOST_FEW and self.batches is None

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random x, weights (K, N) and operands, on the device and with the problem's strides."""
        m, n, k = self.m, self.n, self.k

        batches = self.batches or 1
        scale = 1 / math.sqrt(max(k, 1))
        products = self.epilogue.products

        def matrices(
            sizes: tuple[int, ...], strides: tuple[int, ...], apart: int, *starts: int
        ) -> list[Tensor]:
            if self.batches is not None:
                sizes, strides = (batches, *sizes), (apart, *strides)
            extent = max(_extent(sizes, strides) + max(starts), 0)
            whole = torch.empty(extent, dtype=torch.float32, device=self.device)
            whole.normal_(0.0, scale if sizes[-2:] == (k, n) else 1.0, generator=generator)
            whole = whole.to(self.dtype)
            return [whole.as_strided(sizes, strides, start) for start in starts]

        of_x, of_weights = self.batch_strides
        (x,) = matrices((m, k), self.x_strides, of_x, 0)
        starts = [(0,)] * products if self.apart is None else [(0, self.apart)]
        given = (k, n), self.weight_strides, of_weights
        weights = [weight for of in starts for weight in matrices(*given, *of)]
        operands = random_operands(self.epilogue, m * batches, n, self.device, generator)
        return (x, *weights, *operands)

    def _lying(self) -> str:
        """How batches lie, where not one behind the other."""
        whole = self.m * self.k, self.k * self.n
        kinds = [
            "" if s >= w else "interleaved " if s else "one as "
            for s, w in zip(self.batch_strides, whole, strict=True)
        ]
        return "".join(f"{kind}{of} " for kind, of in zip(kinds, "xw", strict=True) if kind)

    @property
    def may_be_tf32(self) -> bool:
        """Whether its products may be TF32."""
        return in_tf32(self.dtype)

    @property
    def bytes_needed(self) -> int:
        """Bytes of the inputs (in fp32 while they are drawn) and of the results."""
        products = self.epilogue.products
        full = sum(one.kind == "full" for one in self.epilogue.operands)
        results = products + full + len(self.epilogue.outputs)
        each = self.m * self.k + products * self.k * self.n + results * self.m * self.n
        return 6 * (self.batches or 1) * each


def random_operands(
    epilogue: Epilogue, m: int, n: int, device: torch.device, generator: torch.Generator
) -> list[Tensor]:
    """What an epilogue of an (m, n) product reads besides, from a normal distribution."""
    shapes = {"row": (n,), "column": (m, 1), "full": (m, n), "scalar": ()}
    operands = []
    for one in epilogue.operands:
        data = torch.empty(shapes[one.kind], dtype=torch.float32, device=device)
        data.normal_(generator=generator)
        operands.append(data > 0 if one.dtype == "bool" else data.to(getattr(torch, one.dtype)))
    return operands


def _extent(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last of a tensor."""
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def digest(epilogue: Epilogue) -> str:
    """A short name of an epilogue, equal for equal ones."""
    return hashlib.sha256(epilogue.text().encode()).hexdigest()[:12]


# --- Several GEMMs of one operand as the tuner sees them, and random inputs for them --------------

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
        return joined_key(parts, mode)

    def _kernels(self) -> int:
        """Their generation, which is another in TF32 and of one row."""
        return self.generation + (self.dtype is torch.float32) + _ONE_ROW * (self.m == 1)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random x, weights (k, n) and operands, on the device, as they are read: along k."""
        x = self._matrix(self.m, self.x_strides[0], 1.0, generator)
        return (x, *self._weights(generator), *self._operands(self.widths, generator))

    def _matrix(self, rows: int, apart: int, scale: float, generator: torch.Generator) -> Tensor:
        whole = torch.empty(rows, max(apart, self.k), device=self.device)
        return whole.normal_(0.0, scale, generator=generator).to(self.dtype)[:, : self.k]

    def _weights(self, generator: torch.Generator) -> list[Tensor]:
        given = self.weight_strides[1], 1 / math.sqrt(max(self.k, 1)), generator
        return [self._matrix(n, *given).t() for n in self.widths]

    def _operands(self, widths: tuple[int, ...], generator: torch.Generator) -> list[Tensor]:
        """What the epilogues read besides; each is of results of one of some widths."""
        return [
            operand
            for n, epilogue in zip(widths, self.epilogues, strict=True)
            for operand in random_operands(epilogue, self.m, n, self.device, generator)
        ]

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


# --- Products of one normalised row as the tuner sees them, and random inputs for them ------------


@dataclass(frozen=True)
class NormedProblem(SiblingProblem):
    """Products of the norm of x (1, k) with weights (k, n) of some widths n; ``n`` is their sum.

    Attributes:
        epilogues: one of all products, or one for each.
        norm: of x.
        gain: dtype of its weight.
        shift: of what it adds, if it adds something.
        beside: whether Inductor would compute another norm of the row in the same kernel.
        generation: of our kernels and of what counts against them: choices of older ones are left.
    """

    generation: ClassVar[int] = 4
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
        return joined_key(parts, mode)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random x, weights (k, n), vectors and operands, on the device, as they are read."""
        weights = self._weights(generator)
        vectors = [
            torch.empty(self.k, device=self.device).normal_(1.0, 0.1, generator=generator).to(kind)
            for kind in self._vectors
        ]
        # A gated pair has one epilogue for both widths.
        widths = self.widths if len(self.epilogues) == len(self.widths) else self.widths[:1]
        operands = self._operands(widths, generator)
        return (self._matrix(self.m, self.k, 1.0, generator), *weights, *vectors, *operands)

    @property
    def _vectors(self) -> tuple[torch.dtype, ...]:
        """Dtypes of the norm's gain and shift."""
        return (self.gain,) if self.shift is None else (self.gain, self.shift)

    @property
    def bytes_needed(self) -> int:
        """Bytes of the inputs (in fp32 while they are drawn) and of the results."""
        most = max(len(one.outputs) + len(one.operands) for one in self.epilogues)
        return 6 * (self.n * self.weight_strides[1] + 3 * self.k + most * self.m * self.n)
