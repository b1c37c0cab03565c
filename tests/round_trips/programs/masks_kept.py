"""Indexing with a mask whose selection, or its size, really is needed: left as it is."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..inputs import calls, normal
from ..program import Calls, Family
from .masks import masked

FAMILY = Family("masks_kept")


def plain() -> Calls:
    return masked(3, 4)


def something() -> Calls:
    return [c for c in masked(3, 4) if c[1].any()]


@FAMILY.program(plain, grad=True)
def returned(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask]  # expect: masked keep size|python_value|untraceable


@FAMILY.program(plain, grad=True)
def computed_and_returned(x: Tensor, mask: Tensor) -> Tensor:
    y = x[mask]  # expect: masked keep size|python_value|untraceable
    return y * 2, y.sum()


@FAMILY.program(plain)
def count_returned(x: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    return x * 2, x[mask].numel()  # expect: masked late after_graph


@FAMILY.program(plain)
def count_as_a_size(x: Tensor, mask: Tensor) -> Tensor:
    return x.new_zeros(x[mask].numel())  # expect: masked keep size|python_value|untraceable


@FAMILY.program(plain)
def count_tested(x: Tensor, mask: Tensor) -> Tensor:
    if x[mask].numel() == 0:  # expect: masked device on_device
        return x
    return x * 2


@FAMILY.program(plain, grad=True)
def maximum_of_nothing(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].max()  # expect: masked device on_device


@FAMILY.program(plain)
def smallest_and_where(x: Tensor, mask: Tensor) -> Any:
    return x[mask].min(), x[mask].argmax()  # expect: any


@FAMILY.program(plain, grad=True)
def sorted_selection(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].sort().values.sum()  # expect: masked keep size


@FAMILY.program(something, grad=True)
def median_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].median()  # expect: masked keep size


@FAMILY.program(plain, grad=True, rounded=True)
def spread_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    # The line is the warning of too few.
    std = x[mask].std()  # expect: masked device on_device, print late after_graph; cuda: any
    var = x[mask].var()  # expect: masked device on_device, print late after_graph; cuda: any
    return std, var, x[mask].norm()  # expect: masked device on_device or masked keep size


@FAMILY.program(plain, grad=True, rounded=True)
def product_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].prod(), x[mask].softmax(0).sum()  # expect: any


@FAMILY.program(plain, grad=True)
def running_sum_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].cumsum(0).sum()  # expect: masked keep size


@FAMILY.program(plain, grad=True)
def first_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask][:1].sum()  # expect: masked keep size


@FAMILY.program(plain, grad=True, dynamo=True)
def two_masks_of_one_size(x: Tensor, mask: Tensor) -> Tensor:
    return (x[mask] * x[~mask]).sum()  # expect: any


@FAMILY.program(plain, grad=True)
def pairs_by_another_mask(x: Tensor, mask: Tensor) -> Tensor:
    other = mask.flip(0)
    y = x.clone()
    y[mask] = x[other]  # expect: masked keep size
    return y


@FAMILY.program(plain, grad=True)
def stores_a_list_of_values(x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    y[mask] = torch.arange(12.0, device=x.device)[: int(mask.sum())]  # expect: any
    return y


@FAMILY.program(plain)
def stores_values_of_a_wrong_size(x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    y[mask] = torch.arange(5.0, device=x.device)  # expect: masked keep size
    return y


@FAMILY.program(plain)
def store_into_an_input(x: Tensor, mask: Tensor) -> Tensor:
    x[mask] = 0  # expect: masked device on_device
    return x * 2


@FAMILY.program(plain, grad=True)
def store_into_a_leaf(x: Tensor, mask: Tensor) -> Tensor:
    x[mask] = 0  # expect: any
    return x * 2


@FAMILY.program(calls(lambda: [(normal(1, 4).expand(3, 4), normal(3, 4, dtype=torch.bool))]))
def store_into_an_expanded(x: Tensor, mask: Tensor) -> Tensor:
    x[mask] = 0  # expect: masked keep size
    return x * 2


@FAMILY.program(calls(lambda: [(normal(3, 4), normal(3, 5, dtype=torch.bool))]), dynamo=True)
def mask_of_a_wrong_shape(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = 0  # expect: any
    return y


@FAMILY.program(calls(lambda: [(normal(3, 4), normal(3, 5, dtype=torch.bool))]))
def sum_under_a_wrong_mask(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].sum()  # expect: any


@FAMILY.program(plain, grad=True, rounded=True)
def appended_selection(x: Tensor, mask: Tensor) -> list[Tensor]:
    found = []
    found.append(x[mask])  # expect: masked keep size|python_value|untraceable
    return found


@FAMILY.program(plain)
def places_of_the_mask(x: Tensor, mask: Tensor) -> Tensor:
    rows, columns = torch.where(mask)  # expect: masked keep size|python_value|untraceable
    return x[rows, columns] + rows


@FAMILY.program(plain)
def nonzero_returned(x: Tensor, mask: Tensor) -> Tensor:
    return mask.nonzero(), x * 2  # expect: masked keep size|python_value|untraceable


@FAMILY.program(plain)
def loop_over_the_selected(x: Tensor, mask: Tensor) -> Tensor:
    total = x.new_zeros(())
    for value in x[mask]:  # expect: masked keep untraceable|size
        total = total * 0.5 + value
    return total


@FAMILY.program(plain)
def integers_for_a_mask(x: Tensor, mask: Tensor) -> Tensor:
    chosen = mask[:, 0].long()
    return x[chosen].sum()


@FAMILY.program(
    calls(lambda: [(normal(3, 4), normal(3, 4, dtype=torch.bool).to(torch.uint8))]), dynamo=True
)
def bytes_for_a_mask(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].sum()  # expect: any


@FAMILY.program(plain, options={"rules": {"masked": False}})
def switched_off(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].sum()  # expect: masked keep rule_off|forced


@FAMILY.program(plain, grad=True, rounded=True)
def selection_used_twice(x: Tensor, mask: Tensor) -> Tensor:
    y = x[mask]  # expect: masked device on_device
    return y.sum() / (y.numel() + 1), y.mean()


@FAMILY.program(plain, grad=True)
def dropout_of_the_selected(x: Tensor, mask: Tensor) -> Tensor:
    return F.dropout(x[mask], 0.5).sum(), torch.rand(2)  # expect: masked keep random_op


@FAMILY.program(plain, rounded=True)
def written_selection(x: Tensor, mask: Tensor) -> Tensor:
    y = x[mask]  # expect: masked device on_device
    y.add_(1)
    return y.sum() + x.sum()


@FAMILY.program(plain, grad=True, rounded=True)
def gradient_of_infinite_logarithm(x: Tensor, mask: Tensor) -> Tensor:
    return x[x > 0].log().sum()  # expect: masked device on_device


@FAMILY.program(plain, grad=True, rounded=True)
def gradient_of_infinite_root(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].sqrt().sum(), (1 / x)[mask].sum()  # expect: masked device on_device


@FAMILY.program(plain, grad=True)
def requires_grad_in_the_selection(x: Tensor, mask: Tensor) -> Tensor:
    y = x[mask].detach().sum() + x.sum()  # expect: masked device on_device
    return y, x[mask].requires_grad  # expect: any


@FAMILY.program(plain)
def shape_of_the_selection(x: Tensor, mask: Tensor) -> Any:
    return tuple(x[mask].shape), x * 2  # expect: masked late after_graph


@FAMILY.program(plain)
def printed_selection(x: Tensor, mask: Tensor) -> Tensor:
    print("selected", x[mask])  # expect: print late after_graph
    return x * 2


@FAMILY.program(plain)
def masks_by_a_list(x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    y[[True, False, True]] = 0  # expect: any
    return y, x[[False, True, True]].sum()


@FAMILY.program(plain, grad=True)
def mask_and_slice(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 1
    y[mask[:, 0], 1:] = 0  # expect: masked device on_device
    y[mask[:, 1], 0] = 1  # expect: masked device on_device
    return y


@FAMILY.program(plain, grad=True, rounded=True)
def put_into_place(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 1
    y.index_put_((mask,), x.sum())  # expect: masked keep size|untraceable
    z = y.masked_scatter(mask, x * 2)
    return z + torch.masked_select(x, mask).sum()  # expect: masked device on_device


@FAMILY.program(plain, grad=True)
def accumulates(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 1
    source = x.detach().sum()
    y.index_put_((mask,), source, accumulate=True)  # expect: masked keep size|untraceable
    return y
