"""Tensors for a case: their values, and how they lie in memory."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from fusepass.testing.case import Case
from fusepass.testing.space import Space

Values = Literal["normal", "edges", "special"]

# Zeros of both signs, ties, values at which variants of one function differ.
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -3.0, 6.0, 1e-3)
# 100 overflows exp in float32.
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 8.0, -8.0, 100.0, -100.0)


def inputs_of(case: Case, space: Space, values: Values = "normal", seed: int = 0) -> list[Any]:
    """The arguments of a case's program, tensors only (scalars are written into it).

    Values are ``normal`` as the example's (positive where that is), ``edges`` finite values at
    which functions have corners, or ``special`` with NaN and infinities among them.
    """
    generator = torch.Generator().manual_seed(case.seed * 1000 + seed)
    made: dict[int, Tensor] = {}
    for index, p in enumerate(space.tensors):
        dense = _values(shape_of(case, space, p), space.example[p], values, generator)
        if not case.dtypes[index].is_floating_point and space.floating(p):
            dense = dense.nan_to_num(0.0, 4.0, -4.0).mul(3).round()
        dense = dense.to(device=space.example[p].device, dtype=case.dtypes[index])
        tensor = laid_out(dense, case.layouts[index])
        made[p] = tensor.requires_grad_(case.grads[index] and tensor.is_floating_point())
    if case.same is not None:
        made[case.same[1]] = made[case.same[0]]
    return list(made.values())


def shape_of(case: Case, space: Space, position: int) -> tuple[int, ...]:
    """The shape of the tensor at a position."""
    shape = list(space.example[position].shape)
    for dim, size in zip(space.dims, case.sizes, strict=True):
        for (p, axis), factor in dim.axes:
            if p == position:
                shape[axis] = size * factor
    for p, axis in case.ones:
        if p == position:
            shape[axis] = 1
    return (2, *shape) if position in case.lift else tuple(shape)


def _values(
    shape: tuple[int, ...], example: Tensor, values: Values, generator: torch.Generator
) -> Tensor:
    if not example.is_floating_point():  # an index or a mask: only what the example holds is safe
        flat = example.detach().reshape(-1).cpu()
        if flat.numel() == 0:
            return torch.zeros(shape, dtype=example.dtype)
        return flat[torch.randint(flat.numel(), shape, generator=generator)]
    made = torch.randn(shape, generator=generator, dtype=torch.float64)
    positive = example.numel() > 0 and bool((example.detach() >= 0).all())
    if positive:
        made = made.abs() + 0.1
    if values != "normal":
        table: tuple[float, ...] = EDGES if values == "edges" else SPECIAL
        if positive and values == "edges":
            table = tuple(value for value in table if value >= 0)
        chosen = torch.tensor(table, dtype=torch.float64)[
            torch.randint(len(table), shape, generator=generator)
        ]
        share = 0.5 if values == "edges" else 0.2
        made = torch.where(torch.rand(shape, generator=generator) < share, chosen, made)
    return made


def laid_out(dense: Tensor, layout: str) -> Tensor:
    """A tensor equal to ``dense`` that lies in memory another way.

    ``expanded`` repeats the first row, so that its values are not those of ``dense``.
    """
    if layout == "transposed" and dense.dim() >= 2:
        return dense.mT.contiguous().mT
    if layout == "reversed" and dense.dim() >= 2:
        order = tuple(reversed(range(dense.dim())))
        return dense.permute(order).contiguous().permute(order)
    if layout == "expanded" and dense.dim() >= 1 and dense.shape[0] > 1:
        return dense[:1].expand(dense.shape)
    if layout != "contiguous" and dense.dim() >= 1:
        wide = dense.new_zeros((*dense.shape[:-1], 2 * dense.shape[-1] + 1))
        return wide[..., 1::2].copy_(dense)
    return dense.clone(memory_format=torch.contiguous_format)
