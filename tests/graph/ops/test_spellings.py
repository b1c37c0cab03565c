"""Spellings of one computation have equal terms; what differs in anything does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass
from fusepass.testing import assert_rewrites, assert_untouched

Program = Callable[[Tensor], Tensor]

SAME: dict[str, list[Program]] = {
    "var": [
        lambda x: x.var(-1, unbiased=False),
        lambda x: x.var(-1, correction=0),
        lambda x: torch.var(x, (-1,), False),
        lambda x: torch.ops.aten.var.correction(x, [-1], correction=0),
    ],
    "sample var": [
        lambda x: x.var(-1),
        lambda x: x.var(-1, True),
        lambda x: x.var(2, correction=1),
    ],
    "var of all": [lambda x: x.var(False), lambda x: x.var(correction=0)],
    "std": [lambda x: x.std(-1, False, True), lambda x: x.std(-1, correction=0, keepdim=True)],
    "var_mean": [
        lambda x: torch.var_mean(x, -1, unbiased=False)[0],
        lambda x: torch.var_mean(x, -1, correction=0)[0],
    ],
    "norm": [
        lambda x: x.norm(dim=-1),
        lambda x: torch.norm(x, 2, -1),
        lambda x: torch.linalg.vector_norm(x, dim=-1),
        lambda x: torch.linalg.norm(x, dim=-1),
    ],
    "1-norm": [lambda x: x.norm(1, -1), lambda x: torch.linalg.vector_norm(x, 1, dim=(-1,))],
    "norm of all": [lambda x: x.norm(), lambda x: torch.linalg.vector_norm(x)],
    "softmax": [
        lambda x: x.softmax(-1),
        lambda x: torch.special.softmax(x, -1),
        lambda x: torch.ops.aten._softmax(x, -1, False),
    ],
    "logsumexp": [lambda x: x.logsumexp(-1), lambda x: torch.special.logsumexp(x, (-1,))],
    "sum": [lambda x: x.sum(-1), lambda x: torch.sum(x, axis=-1), lambda x: x.sum([2])],
    "sums": [lambda x: x.sum((1, 2)), lambda x: x.sum((2, 1)), lambda x: x.sum([-1, -2])],
    "sum of all": [lambda x: x.sum(), lambda x: x.sum(dim=None), lambda x: x.sum(())],
    "mean": [lambda x: x.mean(-1, True), lambda x: x.mean(axis=-1, keepdims=True)],
    "view": [lambda x: x.view(2, -1), lambda x: x.reshape((2, -1))],
    "ravel": [lambda x: x.flatten(), lambda x: x.ravel(), lambda x: x.view(-1)],
    "select": [lambda x: x.select(1, 0), lambda x: x[:, 0], lambda x: x[:, 0, ...]],
    "first": [lambda x: x[0], lambda x: x.select(0, 0), lambda x: x[0, :]],
    "narrow": [lambda x: x.narrow(1, 1, 2), lambda x: x[:, 1:3], lambda x: x[:, 1:3:1, :]],
    "squeeze": [lambda x: x[:, :1].squeeze(1), lambda x: x[:, :1].squeeze((1,))],
    "sigmoid": [lambda x: x.sigmoid(), lambda x: torch.special.expit(x)],
}
OTHERS: list[tuple[Program, Program]] = [
    (lambda x: x.var(-1, unbiased=False), lambda x: x.var(-1)),
    (lambda x: x.var(-1, correction=0), lambda x: x.var(-1, correction=2)),
    (lambda x: x.var(-1, correction=0), lambda x: x.var(-2, correction=0)),
    (lambda x: x.std(-1, correction=0), lambda x: x.var(-1, correction=0)),
    (lambda x: x.norm(dim=-1), lambda x: x.norm(1, dim=-1)),
    (lambda x: x.norm(dim=-1), lambda x: x.norm(dim=-1, keepdim=True)),
    (
        lambda x: torch.linalg.vector_norm(x, 2, dim=(1, 2)),
        lambda x: torch.linalg.norm(x, 2, (1, 2)),
    ),
    (lambda x: x.sum((1, 2)), lambda x: x.sum((0, 2))),
    (lambda x: x.sum(), lambda x: x.sum(0)),
    (lambda x: x.softmax(-1), lambda x: x.softmax(1)),
    (lambda x: x.amax(-1), lambda x: x.max(-1)[0]),
    (lambda x: x.clamp(0, 1), lambda x: F.hardtanh(x, 0, 1)),
    (lambda x: x.select(1, 0), lambda x: x[:, 1]),
    (lambda x: x.select(1, 0), lambda x: x[:, :1]),
    (lambda x: x.narrow(1, 1, 2), lambda x: x[:, 1:4]),
    (lambda x: x[:, 0:2], lambda x: x[:, 0:2:2]),
    (lambda x: x.view(2, -1), lambda x: x.reshape(4, -1)),
]


def rule_for(program: Program) -> fusepass.Rule:
    def pattern(x: Tensor) -> Tensor:
        return torch.sin(program(x))

    return fusepass.Rule("spelled", pattern, pattern, (torch.randn(2, 4, 6),))


@pytest.mark.parametrize("name", SAME)
def test_all_spellings_of_a_computation_match(name: str) -> None:
    first, *rest = SAME[name]
    x = torch.randn(2, 4, 6)
    with fusepass.rules(rule_for(first)):
        for program in rest:
            assert_rewrites(lambda x, f=program: torch.sin(f(x)), x, rules={"spelled": 1})
    with fusepass.rules(rule_for(rest[0])):
        assert_rewrites(lambda x: torch.sin(first(x)), x, rules={"spelled": 1})


@pytest.mark.parametrize("pair", OTHERS)
def test_another_computation(pair: tuple[Any, Any]) -> None:
    x = torch.randn(2, 4, 6)
    for one, other in (pair, pair[::-1]):
        with fusepass.rules(rule_for(one)):
            assert_untouched(lambda x, f=other: torch.sin(f(x)), x)
