"""Input sets: small tensors whose signs decide which way the branches of a program go."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .program import InputSets

# Stands for the batch size in a shape: 3, unless a test of dynamic shapes chooses another.
B = -1
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Signs:
    """Random tensors; the first ``flips`` of them come with positive and with negative sum.

    Attributes:
        shapes: one per argument; ``B`` is the batch size.
        dtypes: one per argument.
        flips: how many arguments, from the first, take both signs (all combinations).
        batch: the batch size.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    flips: int
    batch: int = 3

    @property
    def dynamic(self) -> bool:
        """Whether any shape has a batch dimension."""
        return any(B in shape for shape in self.shapes)

    def with_batch(self, batch: int) -> Signs:
        """The same inputs for another batch size."""
        return replace(self, batch=batch)

    def __call__(self, seed: int) -> InputSets:
        sets: InputSets = []
        for signs in itertools.product((1, -1), repeat=self.flips):
            padded = (*signs, *([1] * (len(self.shapes) - self.flips)))
            generator = torch.Generator().manual_seed(seed)
            sets.append(
                tuple(
                    self._tensor(shape, dtype, sign, generator)
                    for shape, dtype, sign in zip(self.shapes, self.dtypes, padded, strict=True)
                )
            )
        return sets

    def _tensor(
        self, shape: Shape, dtype: torch.dtype, sign: int, generator: torch.Generator
    ) -> Tensor:
        sizes = [self.batch if size == B else size for size in shape]
        values = torch.randn(sizes, generator=generator, dtype=torch.float64)
        values = torch.where(values.sum() < 0, -values, values) + 0.25
        if not dtype.is_floating_point:
            values = (values * 4).round() + 1
        return (values * sign).to(dtype)


def signs(
    *shapes: Shape, dtype: torch.dtype | Sequence[torch.dtype] = torch.float32, flips: int = 1
) -> Signs:
    """Arguments of these shapes; the first ``flips`` take both signs, so 2**flips sets.

    Positive: the sum is above 0.25 per element, though single elements may be negative.
    """
    dtypes = (dtype,) * len(shapes) if isinstance(dtype, torch.dtype) else tuple(dtype)
    return Signs(shapes, dtypes, min(flips, len(shapes)))


def cases(build: Callable[[], InputSets]) -> Callable[[int], InputSets]:
    """Hand-written sets; ``build`` is called anew for every run."""
    return lambda seed: build()


def rows(*values: object) -> Callable[[int], InputSets]:
    """One float32 tensor argument per set, from nested lists."""
    return lambda seed: [(torch.tensor(value, dtype=torch.float32),) for value in values]
