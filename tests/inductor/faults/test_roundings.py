"""Which casts of the program round, and which of a kernel's formula or of autocast do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass

HALF, WIDE = torch.float16, torch.float32
MET: dict[str, Callable[[Tensor], Any]] = {
    "a pair": lambda x: x.half().float() * 2,
    "a pair of another type": lambda x: x.to(torch.bfloat16).type_as(x),
    "behind a view": lambda x: x.half().reshape(-1).unsqueeze(0).to(WIDE),
    "promoted": lambda x: x.half() + x,
    "a chain": lambda x: ((x.half() * 300).relu() * x.half()).float(),
    "steep": lambda x: torch.tan(x.half() * 3.14159),
}
NOT_MET: dict[str, Callable[[Tensor], Any]] = {
    "stored": lambda x: x.half(),
    "wider first": lambda x: x.double().float() * 2,
    "halves": lambda x: F.relu(x.half()),
    "widened in a formula": lambda x: F.softmax(x.half() * 2, -1),
    "behind a product": lambda x: (x.half() @ x.half().t()).float(),
    "of a given half": lambda x: torch.tan(x),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*MET, *NOT_MET])
def test_rounded(name: str) -> None:
    program = {**MET, **NOT_MET}[name]
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 100
    compiled = torch.compile(program, backend="fusepass")
    exact = {"rtol": 0, "atol": 0} if name in MET else {}
    torch.testing.assert_close(compiled(x), program(x), **exact)
    found = [d for d in fusepass.last_report(compiled).decisions if d.rule == "lost_rounding"]
    assert bool(found) is (name in MET)


def test_the_gradient_is_rounded() -> None:
    def program(x: Tensor) -> Tensor:
        return (x.half().float() * x).sum()

    x = torch.randn(33, requires_grad=True)
    (wanted,) = torch.autograd.grad(program(x), x)
    (got,) = torch.autograd.grad(torch.compile(program, backend="fusepass")(x), x)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_autocast_is_left_alone() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.layer_norm(F.linear(x, w), (7,))

    compiled = torch.compile(program, backend="fusepass")
    compiled(torch.randn(5, 7), torch.randn(7, 7))
    rules = {d.rule for d in fusepass.last_report(compiled).decisions}
    assert "lost_rounding" not in rules
