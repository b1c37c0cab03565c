"""Reductions of what a GEMM region computes: taken in, or left outside, and gradients of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.patterns import gemm_region
from tests.patterns.gemm_programs import (
    ACTIVATIONS,
    OPTIONS,
    REDUCED,
    K,
    Linear,
    M,
    N,
    agrees,
    applied,
)


@pytest.mark.sampled(2)  # each of them, as a matrix or a batch
@pytest.mark.parametrize("shape", [(M, K), (2, 4, M // 8, K)])
@pytest.mark.parametrize("name", REDUCED)
def test_reductions_in_the_epilogue(name: str, shape: tuple[int, ...]) -> None:
    for train in (False, True):
        torch.compiler.reset()
        _, found = agrees(Linear(REDUCED[name]), torch.randn(shape).bfloat16(), train=train)
        assert found == {"gemm_epilogue": 1 + train}


@pytest.mark.parametrize("dim", [0, -1])
def test_gradients_of_the_largest_of_what_was_rounded(dim: int) -> None:
    """Its backward looks for the elements that are equal to it, among the rounded ones."""

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = F.hardswish(x @ w)
        return h @ w.t(), h.float().amax(dim)

    x, w = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    options = {**OPTIONS, "codegen": "inductor"}
    grads = []
    for one in (torch.compile(program, backend="fusepass", options=options), program):
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        out, largest = one(*leaves)
        grads.append(torch.autograd.grad(out.float().sum() + largest.sum(), leaves))
    for mine, theirs in zip(*grads, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-1)


def test_a_write_in_front_of_a_reduction() -> None:
    """The reduction stays outside then; the rest is a region all the same."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(K, N, bias=False)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = F.elu(self.linear(x))
            self.seen.add_(1)
            return h, h.sum(-1)

    _, found = agrees(Counting(), torch.randn(M, K).bfloat16(), train=False)
    assert found == {"gemm_epilogue": 1}


@pytest.mark.parametrize("codegen", ["eager-decomposed", "inductor"])
def test_sizes_that_vary_and_a_reduction(codegen: str) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = F.elu(x @ w)
        return h, h.sum(0)

    options = {**OPTIONS, "codegen": codegen}
    compiled = torch.compile(program, backend="fusepass", options=options, dynamic=True)
    w = torch.rand(K, N).bfloat16()
    for rows in (M, 3 * M + 1, 0):
        x = torch.rand(rows, K).bfloat16()
        for mine, theirs in zip(compiled(x, w), program(x, w), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
    assert applied(compiled)["gemm_epilogue"] >= 1  # without rows it is compiled anew


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_the_gradient_of_a_bias_comes_with_the_derivative(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed-forward layer of a transformer: one kernel gives both, in its backward."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(K, N), nn.Linear(N, K)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(ACTIVATIONS[name](self.up(x)))

    asked: list[Epilogue] = []
    monkeypatch.setattr(gemm_region, "digest", lambda one: asked.append(one) or "")
    _, found = agrees(Layer(), torch.randn(2, M, K).bfloat16(), train=True, codegen="inductor")
    gradients = [one for one in asked if [output.over for output in one.outputs] == ["", "rows"]]
    assert len(gradients) == 1
    assert found == {"gemm_epilogue": 3}  # the gradients of the weights have few rows
