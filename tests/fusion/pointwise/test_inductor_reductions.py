"""What a reduction reads, what reads it, and which reductions come before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fusepass.fusion.pointwise import inductor_reductions

X, Y = torch.randn(12, 20), torch.randn(12, 20)
Program = Callable[[Tensor], Tensor]


def found(program: Program, x: Tensor = X) -> list[fx.Node]:
    gm = make_fx(program, select_decomp_table())(x)
    return [node for node in gm.graph.nodes if inductor_reductions.is_reduction(node)]


@pytest.mark.parametrize(
    ("program", "inner"),
    [
        (lambda x: x.sum(1), True),
        (lambda x: x.sum(0), False),
        (lambda x: x.sum(-2), False),
        (lambda x: x.t().sum(0), True),
        (lambda x: x.amax((0, 1)), True),
        (lambda x: x.mean(), True),
        (lambda x: x.view(3, 4, 20).sum(1), False),
        (lambda x: x.view(12, 20, 1).sum(2), False),  # of one number each
    ],
)
def test_whether_its_numbers_lie_side_by_side(program: Program, inner: bool) -> None:
    (node,) = found(program)
    assert inductor_reductions.is_inner(node) is inner


@pytest.mark.parametrize(
    ("program", "beside"),
    [
        (lambda x: x / x.sum(0), [True]),
        (lambda x: x.softmax(0), [True, True]),
        (lambda x: (x.amax(0).exp() + 1).expand(12, 20) + 0, [True]),
        (lambda x: x.sum(0) * 2, [False]),
        (lambda x: x.sum(0) + x[0], [False]),
        (lambda x: torch.stack(torch.var_mean(x, 0)), [False]),
        (lambda x: F.batch_norm(x, None, None, training=True), [True]),
        (lambda x: x.logsumexp(0), [True, False]),
    ],
)
def test_whether_its_result_meets_what_was_reduced(program: Program, beside: list[bool]) -> None:
    assert [inductor_reductions.is_combined_with_input(node) for node in found(program)] == beside


@pytest.mark.parametrize(
    ("program", "little"),
    [
        (lambda x: x.sum(0), True),
        (lambda x: x.t().reshape(20, 12).sum(1), True),
        (lambda x: (x.relu() * 2 + 1).sum(0), True),
        (lambda x: x.square().sum(0), True),
        (lambda x: (x > 1).any(), True),
        (lambda x: x.half().float().sum(0), True),
        (lambda x: (x - x[0]).sum(0), True),  # one row is next to nothing
        (lambda x: x.exp().sum(0), False),
        (lambda x: x.pow(3).sum(0), False),
        (lambda x: (x * Y).sum(0), False),
        (lambda x: (x @ x.t() * (x @ Y.t())).sum(0), False),
        (lambda x: ((((x + 1) * 2 - 3).abs() + 1).neg()).sum(0), False),
        (lambda x: (x * torch.sort(x).values).sum(0), False),
    ],
)
def test_whether_there_is_little_to_do(program: Program, little: bool) -> None:
    assert inductor_reductions.has_cheap_prologue(found(program)[-1]) is little


def test_reductions_that_come_before() -> None:
    first, second = found(lambda x: x.logsumexp(0))
    assert inductor_reductions.follows_reduction(second)
    assert not inductor_reductions.follows_reduction(first)
    _, across = found(lambda x: (x - x.amax(0)).sum(1))
    assert not inductor_reductions.follows_reduction(across)
    *_, total = found(lambda x: x.softmax(1).sum())
    assert inductor_reductions.reads_a_reduction(total)
    assert not inductor_reductions.follows_reduction(total)
    for program in (lambda x: x.sum(), lambda x: (x - x.mean()).square().sum()):
        assert not inductor_reductions.reads_a_reduction(found(program)[-1])


def test_sizes() -> None:
    (node,) = found(lambda x: torch.stack(torch.var_mean(x, 0)))
    assert inductor_reductions.count_of(node) == 20
    assert inductor_reductions.count_of(node.args[0]) == 240
    gm = make_fx(lambda x: x.sum(0), tracing_mode="symbolic")(X)
    sizes = {inductor_reductions.count_of(node) for node in gm.graph.nodes if node.op != "output"}
    assert sizes == {-1}
