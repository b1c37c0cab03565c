"""Floats that come in and vary, and that no tensor needs: torch takes them as constants in the end.

It does so when the graph has been traced, and only where code is compiled.
"""
# ruff: noqa: T201

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .support.written import assert_same_text


def said(w: Tensor, lr: float) -> Tensor:
    y = (w * 2).sum()
    print(f"lr {lr:.3f}")
    return y


def computed(w: Tensor, lr: float) -> Tensor:
    print("twice", lr * 2, "and more", lr * 2 + 1, w.max().item() * lr)
    return w + 1


def between_others(w: Tensor, lr: float, momentum: float = 0.5) -> Tensor:
    print(f"a {w.sum().item()} lr {lr:.2f} b {w.max().item()} {w} mom {momentum + lr} {lr}")
    return w * momentum


def in_an_arm(w: Tensor, lr: float) -> Tensor:
    y = w.sum()
    if y > 0:
        print("positive", lr, y)
    else:
        print("negative", y, lr)
    return y * 2


def warned(w: Tensor, lr: float) -> Tensor:
    warnings.warn(f"lr {lr} {w.sum()}", stacklevel=1)
    return w * 2


def perplexity(w: Tensor, lr: float) -> Tensor:
    loss = (w * 0.125).sum()
    print(loss.item(), math.exp(loss.item()))
    return loss


def bounded(w: Tensor, lr: float) -> Tensor:
    loss = w.sum() * lr
    value = loss.item()
    if value > 1:
        value = 1
    print(loss, value)
    return loss * 2


class Scheduled(nn.Module):
    rate = 0.0

    def forward(self, w: Tensor, lr: float) -> Tensor:
        loss = (w * 2).sum()
        self.rate = lr * 0.5 + 0.1
        print(f"lr {self.rate:.3f} loss {loss:.3f}")
        return loss


PROGRAMS: dict[str, Callable[[], Any]] = {
    "said": lambda: said,
    "computed": lambda: computed,
    "between others": lambda: between_others,
    "in an arm": lambda: in_an_arm,
    "warned": lambda: warned,
    "perplexity": lambda: perplexity,
    "bounded": lambda: bounded,
    "scheduled": Scheduled,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_lines(name: str, codegen: str) -> None:
    rates = (0.1, 0.2, 0.3, 0.2, -0.5)
    given = [lambda lr=lr: (torch.ones(8) * (1 - 4 * (lr == 0.3)), lr) for lr in rates]
    assert_same_text(PROGRAMS[name](), *given, options={"codegen": codegen}, times=1)


def checked(w: Tensor, lr: float) -> Tensor:
    y = w.sum()
    if not torch.isfinite(y):
        raise ValueError(f"bad at {w[0]} lr {lr:.2f} {y}")
    return w * 3


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_exceptions(codegen: str) -> None:
    compiled = torch.compile(checked, backend="fusepass", options={"codegen": codegen})
    bad = torch.tensor([2.0, math.inf])
    for lr in (0.1, 0.2, 0.3):
        assert torch.equal(compiled(torch.ones(2), lr), torch.full((2,), 3.0))
        with pytest.raises(ValueError, match=f"^bad at 2.0 lr {lr:.2f} inf$"):
            compiled(bad, lr)
