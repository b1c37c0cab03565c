"""Many small kernels in one, of which each reads a part of an input: rows, slices, chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.patterns.conv_programs import applied

Program = Callable[[Tensor], Any]


def each(parts: Any) -> list[Tensor]:
    return [(one * 0.5 + i).tanh() for i, one in enumerate(parts)]


def overwritten(x: Tensor) -> None:
    for i, row in enumerate(x):
        row.mul_(0.5).add_(i)


def beside(x: Tensor) -> list[Tensor]:
    """What is read is overwritten in the end, by something that lies otherwise."""
    made = each(x)
    x.copy_(x.t().contiguous().view(x.shape) * 2)
    return made


TAKEN: dict[str, Program] = {
    "rows": lambda x: each(x),
    "slices": lambda x: each(x.view(-1)[i * 30 : i * 30 + 50 + i] for i in range(12)),
    "chunks": lambda x: each(x.chunk(12)),
    "of unequal sizes": lambda x: each(x.view(-1).split([10 + i for i in range(12)] + [294])[:12]),
    "seen otherwise": lambda x: each(x[i].view(5, 8).unsqueeze(0) for i in range(12)),
    "with the whole row": lambda x: each(x[i] * x[0] for i in range(12)),
    "read, then overwritten": beside,
}
CLOSE: dict[str, Program] = {
    "columns": lambda x: each(x.t()),
    "every other": lambda x: each(x.view(-1)[i::12] for i in range(12)),
    "few": lambda x: each(x[:7]),
    "of what is computed": lambda x: each(x.sin()),
    "overwritten": overwritten,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*TAKEN, *CLOSE])
def test_parts(name: str) -> None:
    program = (TAKEN | CLOSE)[name]
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options={"candidate": "reference"})
    mine = torch.randn(12, 40)
    mine[3, 1], mine[2, 0] = float("nan"), float("inf")
    theirs = mine.clone()
    with torch.no_grad():
        for got, want in zip(compiled(mine) or [], program(theirs) or [], strict=True):
            assert (got.dtype, got.stride()) == (want.dtype, want.stride())
            torch.testing.assert_close(got, want, equal_nan=True)
    torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert applied(compiled, "horizontal") == (name in TAKEN)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["rows", "slices", "chunks", "of unequal sizes"])
def test_on_a_device(name: str, dtype: torch.dtype) -> None:
    """Also where a part does not begin at a multiple of 16 bytes."""
    torch.compiler.reset()
    compiled = torch.compile(TAKEN[name], backend="fusepass")
    x = torch.randn(12, 40, device="cuda").to(dtype)
    with torch.no_grad():
        for got, want in zip(compiled(x), TAKEN[name](x), strict=True):
            torch.testing.assert_close(got, want)
    assert applied(compiled, "horizontal") == 1
