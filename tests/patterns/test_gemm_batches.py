"""Products of batches of matrices with pointwise work around them: experts, attention scores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.patterns.gemm_programs import agrees

E, M, K, N = 3, 136, 16, 24


class Experts(nn.Module):
    """A gated layer for each of some experts, with the rows that each was given."""

    def __init__(self, packed: bool, transposed: bool) -> None:
        super().__init__()
        sizes = (E, N * (1 + packed), K) if transposed else (E, K, N * (1 + packed))
        self.packed, self.transposed = packed, transposed
        self.gate = nn.Parameter(torch.randn(sizes) / 4)
        self.up = nn.Parameter(torch.randn(sizes) / 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = [w.mT if self.transposed else w for w in (self.gate, self.up)]
        if self.packed:
            gate, up = torch.bmm(x, weights[0]).chunk(2, -1)
        else:
            gate, up = (torch.bmm(x, w) for w in weights)
        return F.silu(gate) * up


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_experts(packed: bool, transposed: bool, train: bool) -> None:
    _, found = agrees(Experts(packed, transposed), torch.randn(E, M, K).bfloat16(), train=train)
    if not train:
        assert found == {"gated_gemm": 1}
    else:  # the forward keeps the products; a packed one leaves no GEMM with an epilogue
        assert found == ({} if packed else {"gemm_epilogue": 2})


class Program(nn.Module):
    """A function of x, batches of matrices, and a few things to combine its product with."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.randn(E, K, N) / 4)
        self.row, self.column = nn.Parameter(torch.randn(N)), nn.Parameter(torch.randn(E, M, 1))
        self.full = nn.Parameter(torch.randn(E, M, N))
        self.of_batch = nn.Parameter(torch.randn(E, 1, N))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


TAKEN: dict[str, Callable[..., Tensor]] = {
    "an activation": lambda s, x: F.gelu(x @ s.w),
    "a row": lambda s, x: torch.tanh(x @ s.w + s.row),
    "a column": lambda s, x: (x @ s.w) * s.column,
    "a matrix": lambda s, x: torch.sigmoid(x @ s.w) * s.full,
    "a scaled bias": lambda s, x: torch.baddbmm(s.full, x, s.w, beta=0.5, alpha=2).relu(),
    "a view of it": lambda s, x: (x @ s.w).view(1, E, M, N).relu() + s.full.view(1, E, M, N),
    "rows of a permuted x": lambda s, x: F.silu(
        x.transpose(0, 1).contiguous().mT.mT.transpose(0, 1) @ s.w
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_epilogues_of_batched_gemms(name: str) -> None:
    for train in (False, True):
        torch.compiler.reset()
        x = torch.randn(E, M, K).bfloat16()
        _, found = agrees(Program(TAKEN[name]), x, train=train)
        backward = 2 if train and name == "a scaled bias" else 0  # its two factors
        assert found == {"gemm_epilogue": 1 + backward}


LEFT: dict[str, Callable[..., Tensor]] = {
    "a row for each batch": lambda s, x: (x @ s.w) + s.of_batch,
    "a reduction": lambda s, x: (x @ s.w).sum(1),
}


@pytest.mark.parametrize("name", LEFT)
def test_unsupported_batched_epilogues_stay_with_inductor(name: str) -> None:
    _, found = agrees(Program(LEFT[name]), torch.randn(E, M, K).bfloat16(), train=False)
    assert not found["gated_gemm"]
    assert not found["gemm_epilogue"]
