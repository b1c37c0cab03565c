"""Operands of GEMM regions that were only widened to single precision: read as halves, where they lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.patterns.gemm_programs import OPTIONS, K, N

SPREAD = [(N,), (4, N), (4, 1), (3, 1, 1), (3, 1, N), (1, 4, N), (3, 4, 1), (3, 4, N), ()]


def widened(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return ((x @ w).float() + b.float()).relu().to(x.dtype)


def widened_batches(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (torch.bmm(x, w.expand(3, -1, -1)).float() * b.float()).to(x.dtype)


def widened_views(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return ((x.view(12, -1) @ w).view(3, 4, -1).float() - b.float()).to(x.dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", SPREAD, ids=str)
@pytest.mark.parametrize("program", [widened, widened_batches, widened_views])
def test_copies_in_single_precision(
    program: Callable[..., Tensor], shape: tuple[int, ...], dynamic: bool
) -> None:
    """Read as they are beside the result, not as they lie: some for all of a batch, or of a row."""
    given = [torch.randn(one).bfloat16() for one in ((3, 4, K), (K, N), shape)]
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS, dynamic=dynamic)
    got = compiled(*given)
    exact = program(*(one.double() for one in given))
    torch.testing.assert_close(got.double(), exact.double(), rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_copies_in_what_no_kernel_computes(dtype: torch.dtype) -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        made, other = x @ w, b.to(dtype)
        return made == other if dtype.is_complex else torch.where(made > other, made, 0)

    given = [torch.randn(one).bfloat16() for one in ((9, K), (K, N), ())]
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS)
    torch.testing.assert_close(compiled(*given), program(*given))
