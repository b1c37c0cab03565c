"""A counter with a bound far away makes a loop one that is captured, at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..support.side_by_side import side_by_side

ROWS = [(torch.ones(4) * scale,) for scale in (8.0, 0.1)]


class Bounded(nn.Module):
    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: Tensor) -> Any:
        it = 0
        while x.norm() > 1e-2 and it < self.most:
            x = x * 0.5
            it += 1
        return x + 0, it


def down_from(most: int) -> Any:
    def function(x: Tensor) -> Any:
        left = most
        while left > 0:
            x = x * 0.5
            if x.norm() < 1e-2:
                break
            left -= 1
        return x, left

    return function


@pytest.mark.parametrize(("most", "treatment"), [(33, "loop"), (200, "loop"), (4, "where")])
def test_by_the_rounds_that_are_left(most: int, treatment: str) -> None:
    for program in (Bounded(most), down_from(most)):
        outcome = side_by_side(program, *ROWS)
        assert outcome.breaks == []
        assert treatment in {found for found, _ in outcome.treatments}
