"""What Inductor does with a norm of rows in front of products: one kernel for it. For timing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.kernels.gemm.op import function_of
from fusepass.kernels.gemm.triton_source import BEGINNING

_WARPS = 8
_BODY = """\
@triton.jit
def fusepass_norm(x_ptr, gain_ptr, shift_ptr, out_ptr, K, EPS: tl.constexpr, OFFSET: tl.constexpr,
                  CENTRED: tl.constexpr, SHIFTED: tl.constexpr, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * K + k
    x = tl.load(x_ptr + at, mask=k < K, other=0.0).to(tl.float32)
    gain = tl.load(gain_ptr + k, mask=k < K, other=0.0).to(tl.float32) + OFFSET
    if CENTRED:
        x = tl.where(k < K, x - tl.sum(x, 0) / K, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 0) / K + EPS)
    y = x * scale * gain
    if SHIFTED:
        y += tl.load(shift_ptr + k, mask=k < K, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=k < K)
"""


def normalise(x: Tensor, vectors: Sequence[Tensor], norm: Norm) -> Tensor:
    """The norm of x (M, K), contiguous, rounded to its dtype; its ``vectors`` are (K,)."""
    rows, k = x.shape
    made = torch.empty_like(x)
    block = 1 << (k - 1).bit_length()
    given = {"EPS": norm.eps, "OFFSET": norm.offset, "BLOCK": block, "num_warps": _WARPS}
    kind = {"CENTRED": norm.centred, "SHIFTED": norm.shifted}
    _kernel()[(rows,)](x, vectors[0], vectors[-1], made, k, **given, **kind)
    return made


@functools.cache
def _kernel() -> Any:
    return function_of(BEGINNING + _BODY, "fusepass_norm")
