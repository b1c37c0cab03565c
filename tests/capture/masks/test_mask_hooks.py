"""What a boolean mask selects, reduced and stored without a host round trip: values as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ..support.side_by_side import Outcome, by_error_rule

Program = Callable[..., Any]
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
INF, NAN = float("inf"), float("nan")


def draws(*, integers: bool = False) -> list[tuple[Tensor, ...]]:
    """Calls of ``(x, y, mask, rows, labels)``: any mask, none, all; values that must not leak."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for share in (0.5, 0.0, 1.0, 0.2, 0.8):
        x = torch.randn(5, 7, generator=generator)
        y = torch.randn(5, 7, generator=generator)
        mask = torch.rand(5, 7, generator=generator) < share
        rows = torch.rand(5, generator=generator) < share
        labels = torch.randint(0, 7, (5,), generator=generator)
        found.append((x, y, mask, rows, labels))
    x, y, mask, rows, labels = found[0]
    outside = ~mask & ~rows[:, None]
    x = torch.where(outside, torch.tensor([NAN, INF, -INF, 0.0, 1e38, -1.0, NAN]), x)
    found.append((x, y, mask, rows, torch.where(rows, labels, 99)))
    if integers:
        found = [((x * 9).nan_to_num(0, 9, -9).int(), *rest) for x, *rest in found]
    return found


REDUCED: dict[str, Program] = {
    "sum": lambda x, y, m, r, i: x[m].sum(),
    "mean": lambda x, y, m, r, i: x[m].mean(),
    "rows_mean": lambda x, y, m, r, i: x[r].mean(),
    "rows_mean_0": lambda x, y, m, r, i: x[r].mean(0),
    "rows_sum_keepdim": lambda x, y, m, r, i: x[r].sum(dim=(0, 1), keepdim=True),
    "rows_mean_of_means": lambda x, y, m, r, i: (x[r] - y[r]).pow(2).mean(-1).mean(),
    "columns": lambda x, y, m, r, i: x.t()[:, r].sum(1),
    "transposed": lambda x, y, m, r, i: x.t()[m.t()].sum(),
    "any_all": lambda x, y, m, r, i: ((x[m] > 0).any(), (x[m] > 0).all(), x[m].any(), x[r].all(0)),
    "count_nonzero": lambda x, y, m, r, i: torch.count_nonzero(x[m] > 0.3),
    "prod": lambda x, y, m, r, i: x[r].prod(),
    "norms": lambda x, y, m, r, i: (x[m].norm(), x[m].norm(1), torch.norm(x[m], p=3)),
    "vector_norm": lambda x, y, m, r, i: torch.linalg.vector_norm(x[r], 2, 0),
    "linalg_norm": lambda x, y, m, r, i: torch.linalg.norm(x[m]),
    "variance": lambda x, y, m, r, i: (x[m].var(), x[r].var(0), x[m].var(correction=0)),
    "deviation": lambda x, y, m, r, i: (x[m].std(), x[r].std(unbiased=False)),
    "nansum": lambda x, y, m, r, i: x[m].nansum(),
    "masked_select": lambda x, y, m, r, i: (
        torch.masked_select(x, m).sum() + x.masked_select(m).mean()
    ),
    "sum_of_bools": lambda x, y, m, r, i: (x[m] > 0).sum(),
    "accuracy": lambda x, y, m, r, i: (x.argmax(1)[r] == i[r]).float().mean(),
    "mean_dtype": lambda x, y, m, r, i: x[m].mean(dtype=torch.float64),
    "sum_dtype": lambda x, y, m, r, i: x[m].sum(dtype=torch.float64),
    "squares": lambda x, y, m, r, i: (x[m] - y[m]).pow(2).mean(),
    "logs": lambda x, y, m, r, i: x[m].abs().log().sum(),
    "quotient": lambda x, y, m, r, i: (y[m] / x[m]).sum(),
    "roots": lambda x, y, m, r, i: (x[m].abs() + 1e-3).sqrt().sum(),
    "clone_then_write": lambda x, y, m, r, i: x[m].clone().mul_(2).sum(),
    "scaled_by_row": lambda x, y, m, r, i: (x[r] * y[0]).sum(),
    "scaled_by_one": lambda x, y, m, r, i: (x[m] * y.sum()).sum(),
    "softmax": lambda x, y, m, r, i: (x[r].softmax(-1) * y[r]).sum(),
    "log_softmax": lambda x, y, m, r, i: F.log_softmax(x[r], dim=1).mean(),
    "a_column": lambda x, y, m, r, i: (x[r][:, 0] - y[r][..., 1]).abs().sum(),
    "some_columns": lambda x, y, m, r, i: torch.max(x[r][:, :2], y[r][:, 2:4]).clamp(min=0).sum(),
    "unbound": lambda x, y, m, r, i: sum(p.sum() for p in x[r].unbind(-1)),
    "stacked": lambda x, y, m, r, i: torch.stack([x[r], y[r]], -1).sum((0, 1)),
    "joined": lambda x, y, m, r, i: torch.cat([x[r], y[r]], 1).mean(0),
    "ones_like": lambda x, y, m, r, i: torch.ones_like(x[m]).sum(),
    "normalized": lambda x, y, m, r, i: F.cosine_similarity(x[r], y[r]).mean(),
    "minus_mean": lambda x, y, m, r, i: (x[m] - x[m].mean()).pow(2).sum(),
    "twice": lambda x, y, m, r, i: x[m].sum() / x[r].sum(),
    "own_mask": lambda x, y, m, r, i: x[x > 0].sum(),
    "view": lambda x, y, m, r, i: x[r].view(-1, 7, 1).sum(),
    "mixed": lambda x, y, m, r, i: x[r, 0].sum(),
    "detached": lambda x, y, m, r, i: (x[m].detach() * y[m]).sum(),
    "where": lambda x, y, m, r, i: torch.where(x[m] > 0, y[m], 0.5).sum(),
}
LOSSES: dict[str, Program] = {
    "mse": lambda x, y, m, r, i: F.mse_loss(x[m], y[m]),
    "mse_sum": lambda x, y, m, r, i: F.mse_loss(x[r], y[r], reduction="sum"),
    "mse_none": lambda x, y, m, r, i: F.mse_loss(x[r], y[r], reduction="none").mean(),
    "l1": lambda x, y, m, r, i: F.l1_loss(x[m], y[m].detach()),
    "smooth_l1": lambda x, y, m, r, i: F.smooth_l1_loss(x[m], y[m], beta=0.5),
    "huber": lambda x, y, m, r, i: F.huber_loss(x[r], y[r], delta=0.7),
    "bce": lambda x, y, m, r, i: F.binary_cross_entropy(x[m].sigmoid(), y[m].sigmoid().detach()),
    "bce_weight": lambda x, y, m, r, i: F.binary_cross_entropy_with_logits(
        x[m], y[m].sigmoid(), weight=y[m].detach().exp()
    ),
    "bce_pos_weight": lambda x, y, m, r, i: F.binary_cross_entropy_with_logits(
        x[r], y[r].sigmoid(), pos_weight=y[0].detach().exp(), reduction="sum"
    ),
    "kl": lambda x, y, m, r, i: F.kl_div(
        F.log_softmax(x[r], -1), y[r].softmax(-1), reduction="batchmean"
    ),
    "cross_entropy": lambda x, y, m, r, i: F.cross_entropy(x[r], i[r]),
    "cross_entropy_sum": lambda x, y, m, r, i: F.cross_entropy(x[r], i[r], reduction="sum"),
    "cross_entropy_none": lambda x, y, m, r, i: F.cross_entropy(x[r], i[r], reduction="none").sum(),
    "cross_entropy_ignore": lambda x, y, m, r, i: F.cross_entropy(x[r], i[r], ignore_index=3),
    "cross_entropy_smooth": lambda x, y, m, r, i: F.cross_entropy(
        x[r], i[r], label_smoothing=0.1, weight=y[0].detach().exp()
    ),
    "nll": lambda x, y, m, r, i: F.nll_loss(F.log_softmax(x[r], -1), i[r]),
    "of_each": lambda x, y, m, r, i: F.cross_entropy(x, i.clamp(max=6), reduction="none")[r].mean(),
}


# Before torch 2.13 Dynamo itself breaks the graph at a norm of unknown size.
BREAKS_BEFORE_2_12 = {"norms", "linalg_norm"}


WARNS = ("variance", "deviation")


def on_device(outcome: Outcome, *, warns: bool) -> None:
    """Nothing is selected; eager's warning of too few elements is written behind the graph."""
    found = {("device", "on_device")} | ({("late", "after_graph")} if warns else set())
    assert set(outcome.treatments) == found, outcome.decisions
    assert outcome.breaks == []
    assert len(outcome.graphs) == 1


@pytest.mark.sampled(6)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", [*REDUCED, *LOSSES])
def test_reduced(name: str, grad: bool) -> None:
    program = {**REDUCED, **LOSSES}[name]
    outcome = by_error_rule(program, *draws(), grad=grad)
    if name in BREAKS_BEFORE_2_12 and TORCH < (2, 12):
        outcome.only("keep", "size")
        return
    on_device(outcome, warns=name in WARNS)
    assert not outcome.ops["nonzero"]


def test_integers() -> None:
    """To the last bit."""

    def program(x: Tensor, y: Tensor, m: Tensor, r: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return x[m].sum(), x[r].sum(0), x[r].prod(), x[m].any(), x[m].abs().sum() // 3, x[m] @ x[m]

    def reduced(x: Tensor, y: Tensor, m: Tensor, r: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return x[m].sum(), x[r].sum(0), x[r].prod(), x[m].any(), x[m].abs().sum() // 3

    by_error_rule(reduced, *draws(integers=True)).only("device", "on_device")
    by_error_rule(program, *draws(integers=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["mean", "rows_mean_0", "variance", "mse", "cross_entropy"])
def test_reductions_and_losses_in_other_dtypes(name: str, dtype: torch.dtype) -> None:
    program = {**REDUCED, **LOSSES}[name]
    given = [(x.to(dtype), y.to(dtype), *rest) for x, y, *rest in draws()]
    on_device(by_error_rule(program, *given, grad=True), warns=name in WARNS)


def test_a_mean_of_halves_does_not_overflow() -> None:
    def program(x: Tensor, m: Tensor) -> Tensor:
        return x[m].mean()

    x = torch.full((3, 4), 40000.0, dtype=torch.float16)
    by_error_rule(program, (x, x > 0)).only("device", "on_device")


@pytest.mark.parametrize("scale", [1e20, 1e-25])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_a_deviation_overflows_only_where_it_is_too_large(scale: float, codegen: str) -> None:
    """Eager adds up the squares of float32 in double precision on the CPU."""

    def program(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return x[m].std(), x[m].var(), x[m[:, 0]].std(0, unbiased=False)

    given = [(x * scale, m) for x, _, m, *_ in draws()[:1]]
    on_device(by_error_rule(program, *given, codegen=codegen), warns=True)

    def loss(x: Tensor, m: Tensor) -> Tensor:
        return x[m].std()

    on_device(by_error_rule(loss, *given, grad=True, codegen=codegen), warns=True)


def test_a_deviation_far_from_zero() -> None:
    def program(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return x[m].std(), x[m].var()

    given = [(x + 30000, m) for x, _, m, *_ in draws()[:1]]
    on_device(by_error_rule(program, *given, grad=True), warns=True)


def test_views_and_other_layouts() -> None:
    def program(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return x[m].sum(), x[:, m[0]].mean(1), x.t()[m.t()].mean(), x[m[:, 0], 1:].sum(0)

    x, m = torch.randn(6, 8), torch.rand(6, 8) < 0.5
    layouts = [
        (x, m),
        (x[:, ::2], m[:, ::2]),
        (x.t().contiguous().t(), m),
        (x[:1].expand(6, 8), m),
        (x.flip(0), m.t().contiguous().t()),
    ]
    for layout in layouts:
        by_error_rule(program, layout, grad=False).only("device", "on_device")


def test_dynamic_shapes() -> None:
    def program(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        rows = m.any(1)
        spread = (x[rows] - x[rows].mean(0)).pow(2).mean()
        return x[m].sum(), x[m].mean(), spread, x[m].var()

    sizes = [(5, 7), (3, 4), (8, 2)]
    given = [(torch.randn(size), torch.rand(size) < 0.5) for size in sizes]
    outcome = by_error_rule(program, *given, grad=True, dynamic=True)
    on_device(outcome, warns=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["sum", "squares", "cross_entropy", "variance", "softmax"])
@pytest.mark.parametrize("grad", [False, True])
def test_through_inductor(name: str, grad: bool) -> None:
    program = {**REDUCED, **LOSSES}[name]
    outcome = by_error_rule(program, *draws(), grad=grad, codegen="inductor")
    on_device(outcome, warns=name in WARNS)
