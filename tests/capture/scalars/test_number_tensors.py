"""Numbers that arms read with ``item()`` and that differ between the arms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..support.side_by_side import side_by_side

ROWS = [(torch.ones(4) * scale,) for scale in (3.0, -3.0, 0.0)]


def read_in_both(x: Tensor) -> Any:
    n = x.max().item() if x.sum() > 0 else x.min().item()
    return x * n, n


def read_in_one(x: Tensor) -> Any:
    n = 0.5
    if x.sum() > 0:
        n = x.max().item()
    return x * n, n


def another_kind_in_one(x: Tensor) -> Any:
    n = 0
    if x.sum() > 0:
        n = x.max().item()
    return x + 1, n


def test_captured() -> None:
    for program in (read_in_both, read_in_one, another_kind_in_one):
        outcome = side_by_side(program, *ROWS)
        assert (outcome.breaks, len(outcome.graphs)) == ([], 1)
