"""Masks where a select in their place would come out differently: shapes, dtypes, ties, errors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inputs import INF, NAN, calls, normal
from ..program import Calls, Family
from .masks import masked

FAMILY = Family("mask_traps")


def plain() -> Calls:
    return masked(3, 4)


def selected(*counts: int) -> Calls:
    """Masks of so many elements each."""
    made = []
    for count in counts:
        mask = torch.zeros(12, dtype=torch.bool)
        mask[torch.randperm(12, generator=torch.Generator().manual_seed(count))[:count]] = True
        made.append((normal(3, 4), mask.view(3, 4)))
    return made


@FAMILY.program(lambda: selected(4, 1, 3, 12), grad=True)
def row_under_a_full_mask(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = torch.arange(4.0, device=x.device)  # expect: masked keep size
    return y


@FAMILY.program(lambda: selected(12, 3, 0), grad=True)
def source_of_the_same_shape(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = x + 1  # expect: masked keep size
    return y


@FAMILY.program(lambda: selected(5, 0), grad=True)
def source_of_one_element(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = x[:1, 0]  # expect: masked keep size
    y[~mask] = x[:1, :1]  # expect: masked keep size
    return y


@FAMILY.program(lambda: selected(5, 0))
def source_of_another_dtype(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = x.double().sum()  # expect: masked keep size
    return y


@FAMILY.program(lambda: selected(5, 0))
def selection_of_another_dtype(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = x.half()[mask]  # expect: masked keep size
    return y


@FAMILY.program(lambda: selected(5, 0), grad=True)
def store_makes_it_require_grad(x: Tensor, mask: Tensor) -> Tensor:
    y = torch.zeros(3, 4, device=x.device)
    y[mask] = (x * 3)[mask]  # expect: masked device on_device
    return y, y.requires_grad


@FAMILY.program(plain, grad=True)
class StoresIntoABuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(3, 4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        self.seen[mask] = 0  # expect: masked device on_device
        with torch.no_grad():
            self.seen[~mask] += x[~mask]  # expect: masked device on_device
        return x * self.seen


def ties() -> Calls:
    x = torch.tensor([[-INF, 1.0, -INF, 2.0], [2.0, -INF, 0.0, -1.0]])
    some = torch.tensor([[True, False, True, False], [False, True, False, False]])
    return [(x.clone(), some), (x.clone(), ~some), (x.nan_to_num(NAN), some), (-x, some)]


@FAMILY.program(ties, grad=True)
def maximum_with_ties(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].max(), x[mask].min()  # expect: masked device on_device


@FAMILY.program(lambda: masked(4, 3, axes=1), grad=True, rounded=True)
def reductions_of_rows(x: Tensor, mask: Tensor) -> Tensor:
    columns = x[mask].sum(0), x[mask].mean(0)  # expect: masked device on_device
    return *columns, x[mask].sum(), x[mask].mean(1).sum()  # expect: masked device on_device


@FAMILY.program(lambda: masked(4, 3, axes=1), grad=True, rounded=True)
def reductions_that_keep_axes(x: Tensor, mask: Tensor) -> Tensor:
    column = x[mask].sum(0, keepdim=True)  # expect: masked device on_device
    return column, x[mask].sum(dtype=torch.float64)  # expect: masked device on_device


@FAMILY.program(lambda: masked(4, 3, axes=1))
def any_of_rows(x: Tensor, mask: Tensor) -> Tensor:
    positive = x > 0
    y = positive[mask].any(0), x[mask].any()  # expect: masked device on_device
    return *y, positive[mask].all()  # expect: masked device on_device


@FAMILY.program(lambda: masked(2, 3, 4, axes=2), grad=True, rounded=True)
def two_axes_of_three(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = 0  # expect: masked device on_device
    return y, x[mask].sum(), x[mask].numel() * x  # expect: masked device on_device


@FAMILY.program(
    {"i64": lambda: masked(3, 4, dtype=torch.int64), "bool": lambda: masked(3, 4, dtype=torch.bool)}
)
def sums_of_integers(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].sum(), x[mask].any()  # expect: masked device on_device


@FAMILY.program(lambda: masked(3, 4, dtype=torch.int64), dynamo=True)
def mean_of_integers(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].mean()  # expect: any


@FAMILY.program(plain, grad=True, rounded=True)
def quotient_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    bottom = torch.where(mask, x, torch.zeros_like(x))
    return (x[mask] / bottom[mask]).sum()  # expect: masked device on_device


@FAMILY.program(plain, grad=True, rounded=True)
def chain_of_functions(x: Tensor, mask: Tensor) -> Tensor:
    large = (x[mask] * 100).exp().sum()  # expect: masked device on_device
    return large, x[mask].relu().pow(2).mean()  # expect: masked device on_device


@FAMILY.program(plain, grad=True, rounded=True)
def count_guards_the_mean(x: Tensor, mask: Tensor) -> Tensor:
    loss = (x - 1).abs()
    if mask.sum() > 0:
        return loss[mask].mean()  # expect: any
    return loss.sum() * 0


@FAMILY.program(plain, grad=True, rounded=True)
def number_of_elements_guards(x: Tensor, mask: Tensor) -> Tensor:
    chosen = x[mask]  # expect: masked device on_device
    if chosen.numel() > 0:
        return chosen.mean()
    return x.new_zeros(())


@FAMILY.program(plain, grad=True, rounded=True)
def centred_on_the_selected(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = y[mask] - y[mask].mean()  # expect: masked device on_device
    return y


def labelled() -> Calls:
    target = torch.tensor([0, 3, -100, 1, 2])
    return [
        (normal(5, 4), target),
        (normal(5, 4), target.clamp(max=-100)),
        (normal(5, 4), target.abs() % 4),
    ]


@FAMILY.program(labelled, grad=True, rounded=True)
def cross_entropy_of_selected(logits: Tensor, target: Tensor) -> Tensor:
    mask = target != -100
    return F.cross_entropy(logits[mask], target[mask])  # expect: masked device on_device


@FAMILY.program(plain, grad=True)
def other_ways_to_count(x: Tensor, mask: Tensor) -> Tensor:
    a = torch.nonzero(mask, as_tuple=True)[0].numel()  # expect: masked device on_device
    b = mask.nonzero().size(0) + len(x[mask])  # expect: masked device on_device
    return x * a + b


@FAMILY.program(plain, grad=True)
def counts_as_numbers(x: Tensor, mask: Tensor) -> Tensor:
    n = x[mask].numel()  # expect: masked device on_device
    return x / max(n, 1) + (n > 0) + n // 2


@FAMILY.program(plain, hosted=(1,), rounded=True)
def mask_of_the_host(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = 0  # expect: masked device on_device; cuda: masked keep size
    return y, x[mask].sum()  # expect: masked device on_device; cuda: masked keep device_mismatch


@FAMILY.program(
    calls(lambda: [(normal(4, 4), normal(4, dtype=torch.bool, seed=s)) for s in (1, 2)])
)
def masks_on_both_axes(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 1
    y[mask, :] = 1  # expect: masked device on_device
    y[:, mask] *= 2  # expect: masked device on_device
    y[mask, mask] = 0  # expect: masked keep size|untraceable
    y[mask, None] = 3  # expect: masked keep size|untraceable
    return y


@FAMILY.program(plain, grad=True)
def stores_into_a_view_of_an_argument(x: Tensor, mask: Tensor) -> Tensor:
    y = x.detach()
    y.view(-1)[mask.view(-1)] = 0  # expect: masked device on_device
    return x * 2


@FAMILY.program(plain)
def mask_is_part_of_what_is_written(x: Tensor, mask: Tensor) -> Tensor:
    mask[mask] = False  # expect: masked device on_device
    return x * mask


@FAMILY.program(lambda: selected(5, 0, 12), grad=True)
def deleted_without_use(x: Tensor, mask: Tensor) -> Tensor:
    chosen = x[mask]  # expect: masked device on_device
    del chosen
    return x * 2


@FAMILY.program(lambda: selected(5, 2), grad=True)
def mask_of_a_number(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 1
    y[x.sum() > 0] = 0  # expect: any
    y[mask.any()] += 1  # expect: any
    return y
