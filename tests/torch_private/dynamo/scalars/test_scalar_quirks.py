"""Writes to 0-d float64 inputs, which Dynamo takes for unused inputs, and what it takes rightly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


class Counts(nn.Module):
    """A buffer that counts calls."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * 2


def scaled_then_written(x: Tensor, y: Tensor) -> Tensor:
    y = y * x
    x.add_(1)
    return y


def written_then_read(x: Tensor, y: Tensor) -> Tensor:
    return y * x.mul_(2).item()


def read(x: Tensor, y: Tensor) -> Tensor:
    return y * x.item() + y * x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_buffer_counts(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    module = Counts(dtype)
    compiled = torch.compile(module, backend="fusepass")
    for calls in range(1, 4):
        compiled(torch.ones(2))
        assert module.calls == calls


@pytest.mark.parametrize("program", [scaled_then_written, written_then_read, read])
def test_numbers_that_are_written(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="fusepass")
    for value in (1.5, 1.5, 3.0):
        mine, exact = (torch.tensor(value, dtype=torch.float64) for _ in range(2))
        y = torch.randn(3)
        torch.testing.assert_close(compiled(mine, y), program(exact, y))
        assert torch.equal(mine, exact)
