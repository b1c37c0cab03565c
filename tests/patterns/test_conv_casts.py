"""Casts around convolutions: only those between floating dtypes change nothing but precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.patterns.conv_programs import applied

CHANNELS = 32
Program = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor]
RESIDUALS: dict[str, Program] = {
    "whole": lambda c, x, v: F.relu(c(x) + (x * 3).int()),
    "whole, long": lambda c, x, v: F.relu((x * 3).long() + c(x)),
    "truth": lambda c, x, v: F.relu(c(x) + x.bool()),
    "whole and back": lambda c, x, v: F.relu(c(x) + (x * 3).int().to(x.dtype)),
}
VECTORS: dict[str, Program] = {
    "mask": lambda c, x, v: F.relu(c(x) * v.bool().to(x.dtype)),
    "whole factor": lambda c, x, v: F.relu(c(x) * (v * 3).int().to(x.dtype)),
    "whole sum": lambda c, x, v: F.relu(c(x) + v.long().to(x.dtype)),
    "behind a region": lambda c, x, v: F.silu(c(x) * (v * 3).int().to(x.dtype) + 0.5),
    "eight bits": lambda c, x, v: F.relu(c(x) * v.to(torch.float8_e4m3fn).to(x.dtype)),
    "widened": lambda c, x, v: F.relu(c(x) * v.double().to(x.dtype)),
}
NUMBERS: dict[str, Program] = {
    "overflows": lambda c, x, v: F.relu(c(x) * 1e300 * 1e-300),
    "vanishes": lambda c, x, v: F.relu(c(x) * 1e-30 * 1e-30 * 1e30 * 1e30),
    "by nothing": lambda c, x, v: F.relu(c(x) / 0.0),
    "plain": lambda c, x, v: F.relu(c(x) * 0.5 + 0.25),
}


def agrees(program: Program, dtype: torch.dtype, layout: torch.memory_format) -> int:
    """Results are eager's; how often a convolution was taken."""
    torch.manual_seed(0)
    conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False).to(dtype)
    conv = conv.to(memory_format=layout)
    x = torch.randn(2, CHANNELS, 6, 5).to(dtype).to(memory_format=layout)
    v = (torch.randn(CHANNELS, 1, 1) * 2).to(dtype)
    options = {"codegen": "eager-decomposed", "candidate": "reference"}
    compiled = torch.compile(program, backend="fusepass", options=options)
    with torch.no_grad():
        got, want = compiled(conv, x, v), program(conv, x, v)
    loose = 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(got, want, rtol=loose, atol=loose, equal_nan=True)
    return applied(compiled) + applied(compiled, "conv_region")


@pytest.mark.sampled(3)  # each of them once or twice, with one dtype or layout or another
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", RESIDUALS | VECTORS)
def test_numbers_stay(name: str, layout: torch.memory_format, dtype: torch.dtype) -> None:
    taken = agrees((RESIDUALS | VECTORS)[name], dtype, layout)
    region = dtype is torch.bfloat16 and layout is torch.channels_last
    if name in VECTORS and (name != "behind a region" or region):
        assert taken == 1


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_a_row_are_single(name: str) -> None:
    """As those of tensors are: what overflows on the way is infinite."""
    taken = agrees(NUMBERS[name], torch.float32, torch.contiguous_format)
    assert taken == (name != "by nothing")
