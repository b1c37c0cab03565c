"""A buffer may be updated by a value that may be the buffer itself, and by nothing less."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ..support.side_by_side import side_by_side

ROWS = [(torch.tensor(row),) for row in ([3.0, 1.0, -2.0, 2.0], [-0.5, 0.1, 1.0, -9.0])]
Update = Callable[[Tensor, Tensor, Tensor], Tensor]


class Updated(nn.Module):
    def __init__(self, update: Update) -> None:
        super().__init__()
        self.update = update
        self.register_buffer("u", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        u = self.u
        if x.sum() > 0:
            u = u * x
        return self.update(self.u, u, x)


def put_back(buffer: Tensor, u: Tensor, x: Tensor) -> Tensor:
    buffer.copy_(u)
    return u + x


def written_again(buffer: Tensor, u: Tensor, x: Tensor) -> Tensor:
    buffer.copy_(u)
    buffer.add_(1)
    return u + x


def seen_by_another_choice(buffer: Tensor, u: Tensor, x: Tensor) -> Tensor:
    other = buffer if x.max() < 5 else x
    buffer.copy_(u)
    return u + other


def flipped(buffer: Tensor, u: Tensor, x: Tensor) -> Tensor:
    buffer.copy_(u.flip(0))
    return u + x


def test_captured() -> None:
    outcome = side_by_side(Updated(put_back), *ROWS)
    assert (outcome.breaks, len(outcome.graphs)) == ([], 1)


@pytest.mark.parametrize("update", [written_again, seen_by_another_choice, flipped])
def test_kept_where_the_value_would_change_in_eager(update: Update) -> None:
    outcome = side_by_side(Updated(update), *ROWS)
    assert ("keep", "alias") in outcome.treatments
