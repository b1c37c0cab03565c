"""Operations that fail for some arguments, with arguments for which they cannot; and near misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..support.inputs import B, InputSets, cases, signs
from ..support.program import WHERE, Family, cond, keep

FAMILY = Family("known_ranges")
ONE = signs((4, 4))
PARTIAL = cond("partial_op") | keep("partial_op") | keep("none_grad") | keep("side_effect")

TOTAL: dict[str, Callable[[Tensor], Any]] = {
    "norm": lambda x: x / torch.linalg.norm(x),
    "norm_of_rows": lambda x: x / torch.linalg.norm(x, dim=-1, keepdim=True),
    "norm_of_order": lambda x: x / torch.linalg.norm(x, 3, -1, True),
    "frobenius": lambda x: x * torch.linalg.norm(x, "fro"),
    "largest": lambda x: x / torch.linalg.vector_norm(x, float("inf")),
    "norm_of_a_vector": lambda x: x * torch.linalg.norm(x[0], 2),
    "norm_method": lambda x: x * x.norm(p=1, dim=0),
    "quantile": lambda x: x - x.quantile(0.25),
    "quantile_of_rows": lambda x: x - torch.quantile(x, 0.5, dim=-1, keepdim=True),
    "nanquantile": lambda x: x - torch.nanquantile(x, 0.9),
    "kthvalue": lambda x: x - x.kthvalue(3, dim=-1, keepdim=True).values,
    "kthvalue_of_first": lambda x: x - torch.kthvalue(x, 4, 0)[0],
    "gather_argmax": lambda x: x * x.gather(-1, x.argmax(-1, keepdim=True)),
    "gather_argsort": lambda x: x + x.gather(1, x.argsort(dim=1, descending=True)),
    "gather_sort": lambda x: x + torch.gather(x, 0, torch.sort(x, dim=0)[1]),
    "gather_topk": lambda x: x + x.gather(-1, x.topk(2, -1).indices).sum(),
    "take_along": lambda x: x + torch.take_along_dim(x, x.argsort(0), 0),
    "scatter_argmax": lambda x: x.scatter(-1, x.argmax(-1, keepdim=True), 7.0),
    "scatter_in_place": lambda x: torch.zeros_like(x).scatter_(1, x.max(1, True)[1], 1.0) * x,
    "one_hot": lambda x: x * F.one_hot(x.argmax(-1), 4),
    "one_hot_larger": lambda x: x.sum() * F.one_hot(x.argmin(-1), 5)[:, :4],
    "row": lambda x: x + x[x.sum(1).argmax(keepdim=True)],
    "rows": lambda x: x[x.sum(1).argsort()] * 2,
    "places": lambda x: x * x[torch.arange(4), x.argmax(1)],
    "columns": lambda x: x[:, x[0].argsort()] * 2,
    "index_select": lambda x: x.index_select(0, x[:, 1].argsort()) + x,
    "clamped": lambda x: x + x[(x[0] * 10).long().clamp(0, 3)],
    "remainder": lambda x: x + x[(x[0] * 10).long() % 4],
    "embedded": lambda x: x + F.embedding(x.argmax(-1), torch.ones(4, 4)),
    "reversed": lambda x: x[x.sum(1).argsort().flip(0).unsqueeze(0)].squeeze(0) * 3,
}
MAY_FAIL: dict[str, Callable[[Tensor], Any]] = {
    "spectral_norm": lambda x: x / torch.linalg.norm(x, 2),
    "nuclear_norm": lambda x: x / x.norm("nuc"),
    "quantile_at": lambda x: x - torch.quantile(x, x.abs().max().clamp(0, 1)),
    "gather_counted": lambda x: x + x.gather(1, (x > 0).long()),
    "gather_of_a_longer": lambda x: x + x[:, :2].gather(1, x.argmin(1, True) // 2),
    "of_everything": lambda x: x + x[x.argmax().reshape(1) // 4],
    "shifted": lambda x: x + x[x.sum(1).argsort() - 1],
    "clamped_too_far": lambda x: x + x[(x[0] * 10).long().clamp(0, 3).add(0)],
    "clamped_above": lambda x: x + x[(x[0] * 0).long().clamp(max=3)],
    "remainder_too_large": lambda x: x + x[(x[0] * 0).long() % 5],
    "scatter_sized": lambda x: x.scatter(1, x.long() * 0, 1.0),
}


def program(of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def chosen(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return of(x) + 1
        return x * 3

    return chosen


for name, of in TOTAL.items():
    FAMILY.add(
        name,
        lambda of=of: program(of),
        ONE,
        WHERE | keep("untraceable") if "quantile" in name else WHERE,  # torch 2.11 breaks there
        grad=True,
        tags="inductor contexts" if name in ("norm", "one_hot", "gather_argmax", "rows") else "",
    )
for name, of in MAY_FAIL.items():
    # With gradients eager asks LAPACK for the vectors too, the arm of a cond does not: other bits.
    grad = name != "nuclear_norm"
    FAMILY.add(name, lambda of=of: program(of), ONE, PARTIAL | keep("untraceable"), grad=grad)


def guarded() -> InputSets:
    """The classes fit where the branch says so."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    return [(x, torch.tensor([2, 1, 0])), (x, torch.tensor([2, 9, 0]))]


@FAMILY.program(cases(guarded), PARTIAL)
def index_from_outside(x: Tensor, index: Tensor) -> Tensor:
    if index.max() < 3:
        return x[index]
    return x * 2


@FAMILY.program(cases(guarded), PARTIAL)
def written_between(x: Tensor, index: Tensor) -> Tensor:
    found = x.argmax(-1)
    found.add_(index)
    if found.max() < 4 + 2:
        return x * torch.cat([x, x], -1).gather(1, found.unsqueeze(-1))
    return x * 2


def empty() -> InputSets:
    """No elements: they have no largest, and the program reads none."""
    return [(torch.ones(0),), (torch.ones(0),)]


@FAMILY.program(cases(empty), keep("untraceable") | keep("raises"), one_sided=True)
def largest_of_none(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return torch.linalg.vector_norm(x, float("inf"))
    return x.sum()


@FAMILY.program(signs((B, 4)), WHERE, grad=True)
def of_any_length(x: Tensor) -> Tensor:
    """The range is a symbol when the batch is dynamic."""
    if x.sum() > 0:
        return x[x.sum(1).argsort()] * 2
    return x * 3
