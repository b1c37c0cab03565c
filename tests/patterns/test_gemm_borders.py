"""Where a GEMM region ends: views that are no reshapes, results whose strides are seen, order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fusepass
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from tests.patterns.gemm_programs import OPTIONS, applied

BITS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "whole numbers": lambda x, w, y: (x @ w.t() * 2).view(torch.int16),
    "another half": lambda x, w, y: (x @ w.t() * 2).view(torch.float16),
    "inside": lambda x, w, y: F.silu((x @ w.t()).view(torch.float16)),
    "cut off": lambda x, w, y: ((x @ w.t()).float().mul(2).view(torch.int32) & -65536).view(
        torch.float32
    ),
    "beside": lambda x, w, y: (x @ w.t()) * 2 + (y * 2).view(torch.float16).abs().bfloat16(),
}


@pytest.mark.parametrize("codegen", ["eager-decomposed", "inductor"])
@pytest.mark.parametrize("name", BITS)
def test_bits_as_another_dtype(name: str, codegen: str) -> None:
    torch.manual_seed(0)
    x, w, y = (torch.randn(shape).bfloat16() for shape in ((72, 16), (24, 16), (72, 24)))
    compiled = torch.compile(
        BITS[name], backend="fusepass", options={**OPTIONS, "codegen": codegen}
    )
    got, want = compiled(x, w, y), BITS[name](x, w, y)
    assert got.dtype is want.dtype
    if name == "cut off":  # of what is rounded once
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    else:
        loose = 2.0 if name == "whole numbers" else 1e-2  # of which rounding is one
        torch.testing.assert_close(
            got.double(), want.double(), rtol=2e-2, atol=loose, equal_nan=True
        )
        same = (got == want) | (got.isnan() & want.isnan())
        assert float(same.double().mean()) > 0.5  # the others are rounded once only


PARTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "one": lambda g, u: (F.silu(g) * u, g),
    "both": lambda g, u: (F.silu(g) * u, g, u),
    "a view": lambda g, u: (F.silu(g) * u, g.t()),
    "none": lambda g, u: (F.silu(g) * u,),
}


@pytest.mark.parametrize("codegen", ["eager-decomposed", "inductor"])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_parts_that_are_results(name: str, train: bool, codegen: str) -> None:
    """They lie in one product, side by side, as in eager."""

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return PARTS[name](*F.linear(x, w).chunk(2, -1))

    x, w = torch.randn(72, 16).bfloat16(), torch.randn(48, 16).bfloat16().requires_grad_(train)
    compiled = torch.compile(program, backend="fusepass", options={**OPTIONS, "codegen": codegen})
    got, want = compiled(x, w), program(x, w)
    for one, other in zip(got, want, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    shared = [len({one.untyped_storage().data_ptr() for one in outs}) for outs in (got, want)]
    assert shared[0] == shared[1]
    if name == "none" and not train:
        assert applied(compiled) == {"gated_gemm": 1}


@pytest.mark.parametrize("codegen", ["eager-decomposed", "inductor"])
def test_the_partner_stands_in_front(codegen: str) -> None:
    """Computed again in the backward, where the first product is met with more than the second."""

    def program(x: Tensor, g: Tensor, u: Tensor) -> Tensor:
        def layer(x: Tensor) -> Tensor:
            return F.silu(F.linear(x, g)) * F.linear(x, u)

        out: Tensor = checkpoint(layer, x, use_reentrant=False)
        return out

    shapes = (72, 16), (24, 16), (24, 16)
    given = [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]
    compiled = torch.compile(program, backend="fusepass", options={**OPTIONS, "codegen": codegen})
    wide = [one.detach().double().requires_grad_() for one in given]
    runs = (compiled, given), (program, given), (program, wide)
    grads = [torch.autograd.grad(run(*some).sum(), some) for run, some in runs]
    for mine, theirs, exact in zip(*grads, strict=True):
        bound = error_bound(half_ulp(mine.dtype, rms(exact)), rms_error(theirs, exact), None)
        assert passes(rms_error(mine, exact), bound)
    assert applied(compiled)["gated_gemm"] == 2
    assert not [d for d in fusepass.last_report(compiled).decisions if d.outcome == "failed"]


@pytest.mark.parametrize("codegen", ["eager-decomposed", "inductor"])
def test_numbers_beyond_single_precision(codegen: str) -> None:
    """What eager makes infinite, or compares with, is infinite here."""

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        h = F.linear(x, w)
        return F.elu(h * 1e300), h + 1e39, torch.where(h > -1e40, h * 2, 0.0)

    x, w = torch.randn(72, 16).bfloat16(), torch.randn(24, 16).bfloat16()
    for i in range(3):

        def one(x: Tensor, w: Tensor, i: int = i) -> Tensor:
            return program(x, w)[i]

        compiled = torch.compile(one, backend="fusepass", options={**OPTIONS, "codegen": codegen})
        torch.testing.assert_close(compiled(x, w), one(x, w), rtol=2e-2, atol=2e-2)
