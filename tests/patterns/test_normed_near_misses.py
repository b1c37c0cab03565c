"""What is nearly a norm of one row in front of products, and is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.patterns.test_normed_gemms import (
    EPS,
    K,
    N,
    Program,
    by_error_rule,
    drawn,
    llama,
    pair,
    rewritten,
    scaled,
)


def _of(mean_of: Callable[[Tensor], Tensor], eps: float = EPS) -> Program:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        wide = x.float()
        scaled = wide * torch.rsqrt(mean_of(wide) + eps)
        return pair(gain * scaled.to(x.dtype), w, b)

    return program


def _centred(
    mean: Callable[[Tensor], Tensor] = lambda wide: wide.mean(-1, keepdim=True),
    var: Callable[[Tensor], Tensor] = lambda wide: wide.var(-1, keepdim=True, correction=0),
) -> Program:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        wide = x.float()
        normed = (wide - mean(wide)) * torch.rsqrt(var(wide) + EPS) * gain
        return pair(normed.to(x.dtype), w, b)

    return program


def _the_other_way(wide: Tensor, gain: Tensor) -> Tensor:
    variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    return (wide - variance) * torch.rsqrt(mean + 100) * gain


def _of_mean(wide: Tensor, gain: Tensor) -> Tensor:
    variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    return torch.sub(wide, mean, alpha=2) * torch.rsqrt(variance + EPS) * gain


def _rounded(x: Tensor, gain: Tensor, how: str, centred: float = 0.0) -> Tensor:
    wide = x.float()
    rows = wide - wide.mean(-1, keepdim=True) if centred else wide
    root = torch.sqrt(rows.pow(2).mean(-1, keepdim=True) + EPS)
    return (torch.div(rows, root, rounding_mode=how) * gain.float()).to(x.dtype)


CLOSE: dict[str, Program] = {
    "no norm": lambda x, g, w, b: pair(x * g, w, b),
    "without a weight": lambda x, g, w, b: pair(F.rms_norm(x, (K,), None, EPS), w, b),
    "no weight of its own": lambda x, g, w, b: pair(F.layer_norm(x, (K,), None, g, EPS), w, b),
    "another mean is subtracted": _centred(lambda wide: wide.sin().mean(-1, keepdim=True)),
    "a variance with a correction": _centred(var=lambda wide: wide.var(-1, keepdim=True)),
    "the variance of another": _centred(
        var=lambda wide: wide.sin().var(-1, keepdim=True, correction=0)
    ),
    "a mean of squares that keep their mean": _centred(
        var=lambda wide: wide.pow(2).mean(-1, keepdim=True)
    ),
    "mean and variance the other way": lambda x, g, w, b: pair(
        _the_other_way(x.float(), g).to(x.dtype), w, b
    ),
    "a factor of the mean": lambda x, g, w, b: pair(_of_mean(x.float(), g).to(x.dtype), w, b),
    "a variance of all dimensions": _centred(
        var=lambda wide: wide.var((0, 1), keepdim=True, correction=0)
    ),
    "rounded down": lambda x, g, w, b: pair(_rounded(x, g, "floor"), w, b),
    "rounded to zero": lambda x, g, w, b: pair(_rounded(x, g, "trunc"), w, b),
    "rounded down, centred": lambda x, g, w, b: pair(_rounded(x, g, "floor", 1.0), w, b),
    "another dtype in front": lambda x, g, w, b: pair(
        F.layer_norm(x.half().float(), (K,), g.float(), None, EPS).to(x.dtype), w, b
    ),
    "a shift of each element": lambda x, g, w, b: pair(
        (F.layer_norm(x.float(), (K,), g.float(), None, EPS) + g[None].float()).to(x.dtype), w, b
    ),
    "a shift behind an RMSNorm": lambda x, g, w, b: pair(
        (scaled(x) * g.float() + g.float()).to(x.dtype), w, b
    ),
    "a shift with a factor": lambda x, g, w, b: pair(
        torch.add(F.layer_norm(x.float(), (K,), g.float(), None, EPS), g.float(), alpha=2).to(
            x.dtype
        ),
        w,
        b,
    ),
    "its mean is wanted": lambda x, g, w, b: [
        (both := torch.var_mean(wide := x.float(), -1, correction=0, keepdim=True))[1],
        pair(((wide - both[1]) * torch.rsqrt(both[0] + EPS) * g).to(x.dtype), w, b),
    ],
    "read by others, too": lambda x, g, w, b: [n := llama(x, g), pair(n, w, b)],
    "a view of it read by others": lambda x, g, w, b: [
        (n := llama(x, g)).view(-1),
        pair(n, w, b),
    ],
    "the weight of a product": lambda x, g, w, b: w @ llama(x, g).t(),
    "both operands": lambda x, g, w, b: (n := llama(x, g)) @ n.t(),
    "a bias": lambda x, g, w, b: torch.addmm(llama(x, g), x, w[:K, :].t()),
    "a gain for each element": lambda x, g, w, b: pair(llama(x, g[None]), w, b),
    "mean of another tensor": _of(lambda wide: wide.sin().pow(2).mean(-1, keepdim=True)),
    "mean of third powers": _of(lambda wide: wide.abs().pow(3).mean(-1, keepdim=True)),
    "a sum": _of(lambda wide: wide.pow(2).sum(-1, keepdim=True)),
    "no eps": _of(lambda wide: wide.pow(2).mean(-1, keepdim=True), 0.0),
    "cut to integers": lambda x, g, w, b: pair(scaled(x).to(torch.int8) * g, w, b),
    "zero or not": lambda x, g, w, b: pair(scaled(x).bool() * g, w, b),
    "its scale is wanted": lambda x, g, w, b: [
        s := torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS),
        pair(g * (x.float() * s).to(x.dtype), w, b),
    ],
    "norms of heads": lambda x, g, w, b: pair(llama(x.view(6, 8), g[:8]).view(1, K), w, b),
    "no finite eps": _of(lambda wide: wide.pow(2).mean(-1, keepdim=True), float("inf")),
    "another dtype behind": lambda x, g, w, b: llama(x, g).float() @ w.float().t(),
    "a sum behind each": lambda x, g, w, b: [
        F.hardswish(F.linear(n := llama(x, g), w[:N])),
        F.hardswish(F.linear(n, w[N:])),
    ],
}


@pytest.mark.parametrize("name", CLOSE)
def test_what_comes_close(name: str) -> None:
    given = drawn(torch.bfloat16, 1)
    gm, _ = rewritten(CLOSE[name], *given)
    assert "normed_gemms" not in gm.code
    by_error_rule(CLOSE[name], gm, given)
