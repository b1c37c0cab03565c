"""Indexing with a mask where the number of elements never has to be known."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inputs import FLOATS, INF, NAN, calls, normal, placed
from ..program import Calls, Draws, Family

FAMILY = Family("masks")


def masked(*shape: int, dtype: torch.dtype = torch.float32, axes: int | None = None) -> Calls:
    """A tensor and a mask over its first axes: mixed, all, none, one; NaN where none is selected."""
    x = normal(*shape, dtype=dtype)
    covered = shape[:axes]
    mixed = normal(*covered, dtype=torch.bool, seed=3)
    one = torch.zeros(covered, dtype=torch.bool)
    if one.numel():
        one.view(-1)[one.numel() // 2] = True
    masks = [mixed, torch.ones_like(mixed), torch.zeros_like(mixed), one, ~one]
    made: Calls = [(x.clone(), mask) for mask in masks]
    if dtype.is_floating_point and axes is None:
        unselected = torch.where(mixed, x, torch.tensor(NAN, dtype=dtype))
        made += [(unselected, mixed), (placed(x, INF), mixed), (placed(x, NAN), one)]
    return made


def several(*shape: int, axes: int | None = None) -> Draws:
    """:func:`masked` in every floating dtype, for integers, and for nothing at all."""
    draws = {
        name: lambda dtype=dtype: masked(*shape, dtype=dtype, axes=axes)
        for name, dtype in FLOATS.items()
    }
    draws["i64"] = lambda: masked(*shape, dtype=torch.int64, axes=axes)
    draws["u8"] = lambda: masked(*shape, dtype=torch.uint8, axes=axes)
    draws["empty"] = lambda: masked(0, *shape[1:], axes=axes)
    draws["strided"] = lambda: [
        (x.t().contiguous().t(), mask) for x, mask in masked(*shape, axes=axes)
    ]
    return draws


FLOAT_ONLY = ("f32", "f16", "bf16", "f64", "empty", "strided")


def of_floats(*shape: int) -> Draws:
    """:func:`several`, of floating dtypes."""
    draws = several(*shape)
    return {name: draws[name] for name in FLOAT_ONLY}


@FAMILY.program(several(3, 4), grad=True, tags="inductor")
def stores_a_number(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = 1  # expect: masked device on_device
    return y


@FAMILY.program(several(3, 4))
def stores_into_an_argument(x: Tensor, mask: Tensor) -> Tensor:
    x[mask] = 0  # expect: masked device on_device
    return x + 1


@FAMILY.program(of_floats(3, 4), grad=True, rounded=True)
def stores_a_scalar_tensor(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = x.sum()  # expect: masked device on_device
    return y


@FAMILY.program(several(3, 4, axes=1), grad=True)
def stores_into_rows(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = 1  # expect: masked device on_device
    return y


@FAMILY.program(several(3, 4, axes=1), grad=True, tags="inductor")
def stores_a_row(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = x.new_ones(4) + x.detach().sum()  # expect: masked device on_device
    return y


@FAMILY.program(of_floats(3, 4), grad=True)
def stores_selected_of_another(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = (x + 1)[mask]  # expect: masked device on_device; empty: any
    return y


@FAMILY.program(of_floats(3, 4), grad=True)
def stores_a_function_of_the_selected(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = y[mask].exp() + 1  # expect: masked device on_device; empty: any
    return y


@FAMILY.program(several(3, 4), grad=True, tags="inductor")
def scales_selected(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] *= 3  # expect: masked device on_device; empty: any
    return y


@FAMILY.program(of_floats(3, 4), grad=True)
def adds_to_selected(x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    y[mask] += 0.5  # expect: masked device on_device; empty: any
    y[~mask] /= 2  # expect: masked device on_device; empty: any
    return y


@FAMILY.program(of_floats(3, 4), grad=True, rounded=True, tags="inductor")
def sum_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].sum()  # expect: masked device on_device; empty: any


@FAMILY.program(several(3, 4), rounded=True)
def sums_of_every_kind(x: Tensor, mask: Tensor) -> Tensor:
    total = x[mask].sum(), (x * 2)[mask].sum()  # expect: masked device on_device; empty: any
    return *total, x[~mask].sum()  # expect: masked device on_device; empty: any


@FAMILY.program(of_floats(3, 4), grad=True, rounded=True, tags="inductor")
def mean_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].mean()  # expect: masked device on_device; empty: any


@FAMILY.program(calls(lambda: masked(3, 4)), grad=True, rounded=True)
def mean_of_a_mask_made_here(x: Tensor, mask: Tensor) -> Tensor:
    return (x * x)[x > 0.5].mean() + x.sum()  # expect: masked device on_device


@FAMILY.program({**several(3, 4), "rows": lambda: masked(3, 4, axes=1)})
def any_and_all_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return (x > 0)[mask].any(), (x > 0)[mask].all()  # expect: masked device on_device; empty: any


@FAMILY.program({**several(3, 4), "rows": lambda: masked(3, 4, axes=1)})
def how_many_are_selected(x: Tensor, mask: Tensor) -> Tensor:
    return x * x[mask].numel()  # expect: masked device on_device; empty: any


@FAMILY.program(of_floats(3, 4), grad=True)
def divides_by_how_many(x: Tensor, mask: Tensor) -> Tensor:
    return x / (x[mask].numel() + 1)  # expect: masked device on_device; empty: any


@FAMILY.program(of_floats(3, 4), grad=True)
def counts_by_where(x: Tensor, mask: Tensor) -> Tensor:
    return x * torch.where(mask)[0].numel()  # expect: masked device on_device; empty: any


@FAMILY.program(of_floats(3, 4), grad=True)
def counts_by_nonzero(x: Tensor, mask: Tensor) -> Tensor:
    y = x * mask.nonzero().numel()  # expect: masked device on_device; empty: any
    return y, x + x.nonzero().shape[0]  # expect: masked device on_device; empty: any


@FAMILY.program(of_floats(3, 4), grad=True, rounded=True, tags="inductor")
def masked_loss(x: Tensor, mask: Tensor) -> Tensor:
    error = (x - 1) ** 2
    return error[mask].mean() + error.sum()  # expect: masked device on_device; empty: any


@FAMILY.program(of_floats(3, 4), grad=True, rounded=True)
def difference_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return (x[mask] - (x * 2)[mask]).abs().sum()  # expect: masked device on_device; empty: any


@FAMILY.program(calls(lambda: masked(3, 4)), grad=True, rounded=True)
def loss_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return F.mse_loss(x[mask], (x.detach() + 1)[mask])  # expect: any


@FAMILY.program(of_floats(3, 4), grad=True, rounded=True)
def mask_written_between(x: Tensor, mask: Tensor) -> Tensor:
    selected = x[mask]  # expect: masked device on_device; empty: any
    mask.logical_not_()
    return selected.sum()


@FAMILY.program(of_floats(3, 4), grad=True, rounded=True)
def tensor_written_between(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    selected = y[mask]  # expect: masked device on_device; empty: any
    y.add_(100)
    return selected.sum() + y.sum()


@FAMILY.program(of_floats(3, 4), grad=True, rounded=True)
class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = x * self.linear.weight[0].to(x.dtype)
        total = h[mask].sum()  # expect: masked device on_device; empty: any
        h[~mask] = 0  # expect: masked device on_device; empty: any
        return h * total


@FAMILY.program(calls(lambda: masked(3, 4)), dynamic=True, grad=True)
def store_under_dynamic_shapes(x: Tensor, mask: Tensor) -> Tensor:
    y = x * x.shape[0]
    y[mask] = 0  # expect: masked device on_device
    return y


@FAMILY.program(calls(lambda: masked(3, 4)), grad=True)
def store_in_an_arm(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    if mask.any():
        y[mask] = 0  # expect: any
    return y


@FAMILY.program(calls(lambda: masked(6, 4, axes=1)), grad=True, rounded=True)
def sum_of_selected_rows(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].sum(), x[mask].sum(0)  # expect: any


@FAMILY.program(calls(lambda: masked(3, 4)), grad=True, rounded=True)
def largest_where_something_is(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, -INF).max() + x.sum()


@FAMILY.program(calls(lambda: [c for c in masked(3, 4) if c[1].any()]), grad=True)
def maximum_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].max(), x[mask].min()  # expect: masked device on_device


@FAMILY.program(calls(lambda: masked(4, 4)), grad=True)
def mask_of_another_place(x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    y[:, mask[0]] = 0  # expect: any
    return y


@FAMILY.program(calls(lambda: masked(4, 6)), grad=True)
def stores_through_a_view(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[:, ::2][mask[:, ::2]] = 0  # expect: masked device on_device
    y.t()[mask.t()] += 1  # expect: masked device on_device
    return y


@FAMILY.program(calls(lambda: masked(4, 6)))
def argument_seen_through_another(x: Tensor, mask: Tensor) -> Tensor:
    view = x[1:]
    x[mask] = 5  # expect: masked device on_device
    return view * 2, view


@FAMILY.program({"big": lambda: masked(3, 4), "i64": lambda: masked(3, 4, dtype=torch.int64)})
def stores_a_fraction(x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    y[mask] = 2.75  # expect: masked device on_device
    return y
