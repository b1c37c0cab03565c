"""What is written through a mask keeps its strides, compiled as well."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def number(x: Tensor, y: Tensor) -> Tensor:
    h = x.clone()
    h[h > 0] = 0
    return h


def scaled(x: Tensor, y: Tensor) -> Tensor:
    h = x.clone()
    h[y > 0] *= 2
    return h


def tensor(x: Tensor, y: Tensor) -> Tensor:
    h = x + 1
    h[y > 0] = y[y > 0]
    return h


def column(x: Tensor, y: Tensor) -> Tensor:
    h = x.clone()
    h[:, 0][y[:, 0] > 0] = 7.5
    return h


LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(4, 1).expand(4, 6),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("program", [number, scaled, tensor, column])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_strides(program: object, codegen: str) -> None:
    assert callable(program)
    torch.manual_seed(0)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    for name, make in LAYOUTS.items():
        x, y = make(), make()
        eager, ours = program(x, y), compiled(x, y)
        assert torch.equal(eager, ours), name
        assert eager.stride() == ours.stride(), name
