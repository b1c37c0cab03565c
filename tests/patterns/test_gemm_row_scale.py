"""The scale of a norm, moved from a product's operand to the product."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.fusion.kernel_ir.epilogue import (
    Epilogue,
    EpilogueOperand,
    EpilogueStep,
    Output,
    evaluate,
)
from tests.patterns.gemm_programs import agrees

M, K, N = 72, 32, 24
MOVED = "is applied to the product"


class Normed(nn.Module):
    """Layers behind a norm of their input."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.gate, self.up = nn.Linear(K, N), nn.Linear(K, N, bias=False)
        self.wide = nn.Parameter(torch.randn(2 * K, N) / 8)
        self.gain = nn.Parameter(torch.randn(K))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def by_hand(x: Tensor, eps: float = 1e-6) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def scale_of(x: Tensor) -> Tensor:
    return torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (K,), eps=1e-6)


TAKEN: dict[str, Callable[..., Tensor]] = {
    "an activation": lambda s, x: F.elu(s.gate(norm(x))),
    "a pair": lambda s, x: F.silu(s.gate(y := norm(x))) * s.up(y),
    "by hand": lambda s, x: F.elu(s.up(by_hand(x))),
}


def moved(compiled: object) -> int:
    return sum(MOVED in one.reason for one in fusepass.last_report(compiled).decisions)


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("shape", [(M, K), (2, M // 2, K)])
@pytest.mark.parametrize("codegen", ["eager-decomposed", "inductor"])
def test_row_scale_moves_behind_the_gemm(name: str, shape: tuple[int, ...], codegen: str) -> None:
    x = (torch.randn(shape) * 30).bfloat16()
    compiled, found = agrees(Normed(TAKEN[name]), x, train=False, codegen=codegen)
    assert found.total() == 1
    assert moved(compiled) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TAKEN)
def test_gradients(name: str) -> None:
    agrees(Normed(TAKEN[name]), torch.randn(M, K).bfloat16(), train=True, codegen="inductor")


STAYS: dict[str, Callable[..., Tensor]] = {
    "with a weight": lambda s, x: F.elu(s.gate(F.rms_norm(x, (K,), s.gain, 1e-6))),
    "a mean is subtracted": lambda s, x: F.elu(s.gate(F.layer_norm(x, (K,)))),
    "read by others": lambda s, x: F.elu(s.gate(y := norm(x))) + y.sum(),
    "maybe infinite": lambda s, x: F.elu(s.gate(by_hand(x, eps=0.0))),
    "maybe of a negative number": lambda s, x: F.elu(s.gate(by_hand(x, eps=-1e-6))),
    "of no squares": lambda s, x: F.elu(
        s.gate((x.float() * torch.rsqrt(x.float().mean(-1, keepdim=True) + 1)).to(x.dtype))
    ),
    "a number per column": lambda s, x: F.elu(
        s.gate((x.float() * torch.rsqrt(x.float().square().mean(0, keepdim=True) + 1)).to(x.dtype))
    ),
    "two rows become one": lambda s, x: F.elu(norm(x).view(M // 2, 2 * K) @ s.wide),
    "one row becomes two": lambda s, x: F.elu(norm(x).view(2 * M, K // 2) @ s.wide[: K // 2]),
    "of each head": lambda s, x: F.elu(by_hand(x.view(M, 4, K // 4)).reshape(M, K) @ s.wide[:K]),
    "of numbers cut off": lambda s, x: F.elu(s.gate((x.to(torch.int32) * scale_of(x)).to(x.dtype))),
    "of truth values": lambda s, x: F.elu(s.gate((x.bool() * scale_of(x)).to(x.dtype))),
    "through a smaller range": lambda s, x: F.elu(s.gate((x.half() * scale_of(x)).to(x.dtype))),
    "transposed": lambda s, x: F.elu(s.gate(by_hand(x.t().contiguous().t()))),
}


@pytest.mark.parametrize("name", STAYS)
def test_it_stays(name: str) -> None:
    compiled, _ = agrees(Normed(STAYS[name]), torch.randn(M, K).bfloat16(), train=False)
    assert moved(compiled) == 0


def test_rows_that_vary_and_extreme_ones() -> None:
    module = Normed(TAKEN["a pair"]).half()
    options = {"candidate": "reference"}
    compiled = torch.compile(module, backend="fusepass", dynamic=True, options=options)
    for rows in (80, 97):
        x = torch.randn(2, rows, K).half()
        x[0, 0], x[0, 1], x[0, 2, 3] = 0.0, 6e4, float("inf")
        x[0, 4, 5], x[0, 6] = float("nan"), 1e-7
        with torch.no_grad():
            got, want = compiled(x), module(x)
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2, equal_nan=True)
    assert moved(compiled) == 1


def test_an_epilogue_without_its_scale() -> None:
    scaled = Epilogue(
        2,
        (EpilogueOperand("column", "float32"), EpilogueOperand("row", "float32")),
        (
            EpilogueStep("mul", ("%0", "%2")),
            EpilogueStep("mul", ("%1", "%2")),
            EpilogueStep("add", ("%4", "%3")),
            EpilogueStep("mul", ("%6", "%5")),
        ),
        (Output("%7", "bfloat16"), Output("%5", "bfloat16")),
    )
    plain = scaled.unscaled()
    assert plain.steps == (EpilogueStep("add", ("%0", "%2")), EpilogueStep("mul", ("%3", "%1")))
    assert [output.value for output in plain.outputs] == ["%4", "%1"]
    assert plain.operands == scaled.operands[1:]
    x, column, row = torch.randn(5, 4), torch.rand(5, 1), torch.randn(3)
    products = [x @ torch.randn(4, 3) for _ in range(2)]
    want = evaluate(plain, [one * column for one in products], [row])
    got = evaluate(scaled, products, [column, row])
    torch.testing.assert_close(got, want)


def test_a_scale_that_is_read_again_stays_an_operand() -> None:
    scaled = Epilogue(
        1,
        (EpilogueOperand("column", "float32"),),
        (EpilogueStep("mul", ("%0", "%1")), EpilogueStep("add", ("%2", "%1"))),
        (Output("%3", "bfloat16"),),
    )
    plain = scaled.unscaled()
    assert plain.operands == scaled.operands
    assert plain.steps == (EpilogueStep("add", ("%0", "%1")),)
    assert plain.outputs[0].value == "%2"
