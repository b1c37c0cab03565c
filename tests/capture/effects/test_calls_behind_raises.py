"""Calls behind a raise that fail for no value: the raise waits until the graph has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fusepass


def sampled(x: Tensor) -> Tensor:
    if (x > 9).any():
        raise ValueError(f"too large: {tuple(x.shape)}")
    grid = F.affine_grid(x[0, 0, :2, :3][None], [1, 1, 2, 2], align_corners=False)
    return F.grid_sample(x, grid / x.min().relu(), align_corners=False)


def shuffled(x: Tensor) -> Tensor:
    if (x > 9).any():
        raise ValueError("too large")
    return F.pixel_shuffle(F.pixel_unshuffle(x, 2), 2) + 1


def mapped(x: Tensor) -> Tensor:
    if (x > 9).any():
        raise ValueError("too large")
    return torch.vmap(lambda row: row.cumsum(0) * 2)(x)


@pytest.mark.parametrize("program", [sampled, shuffled, mapped])
def test_both_outcomes(program: Callable[[Tensor], Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for number in (1.0, 100.0, float("nan"), 2.0):
        x = torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(2)) * number
        found: list[Any] = []
        for call in (program, compiled):
            try:
                found.append(call(x))
            except ValueError as error:
                found.append(str(error))
        a, b = found
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7)) if isinstance(a, Tensor) else a == b
    assert not fusepass.last_report(compiled).graph_breaks


def indexed_in_a_map(x: Tensor, at: Tensor) -> Tensor:
    if (x > 9).any():
        raise ValueError(f"too large: {tuple(x.shape)}")
    rows = torch.vmap(lambda row: torch.vmap(lambda place: x[row, place] > 0)(at))
    return torch.where(rows(torch.arange(2)), x, 0)


def test_indices_inside_vmap() -> None:
    torch.compiler.reset()
    compiled = torch.compile(indexed_in_a_map, backend="fusepass", options={"codegen": "eager"})
    for number in (1.0, 100.0, 2.0):
        for start in (0, 2):
            found: list[Any] = []
            for call in (indexed_in_a_map, compiled):
                try:
                    found.append(call(torch.full((2, 3), number), torch.arange(3) + start).tolist())
                except (ValueError, IndexError) as error:
                    found.append((type(error), str(error)))
            assert found[0] == found[1]
    assert not fusepass.last_report(compiled).graph_breaks
