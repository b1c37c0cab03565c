"""One selection spelled in other ways: an equal mask written again, and the places of a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ..support.side_by_side import by_error_rule

Program = Callable[..., Any]


def draws() -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(3)
    found = []
    for share in (0.6, 0.0, 1.0, 0.6):
        x, y = (torch.randn(5, 7, generator=generator) for _ in range(2))
        x = x + (share - 0.5) * 20 if share in (0.0, 1.0) else x
        found.append((x, y, torch.rand(5, 7, generator=generator) < share))
    return found


def in_two_functions(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    def positive(values: Tensor) -> Tensor:
        return values[x.detach() * 2 > 0]

    return F.mse_loss(positive(x), positive(y))


def written_elsewhere(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    first = x[y > 0.1]
    h = x * 2
    h.add_(1)
    return F.l1_loss(first, h[y > 0.1])


EQUAL: dict[str, Program] = {
    "mse": lambda x, y, m: F.mse_loss(x[x > 0.1], y[x > 0.1]),
    "l1": lambda x, y, m: F.l1_loss(x[x > 0.1], y[x > 0.1]),
    "smooth_l1": lambda x, y, m: F.smooth_l1_loss(x[y != 0], y[y != 0], reduction="sum"),
    "bce": lambda x, y, m: F.binary_cross_entropy(x.sigmoid()[~m], y.sigmoid()[~m]),
    "rows": lambda x, y, m: F.mse_loss(x[m.any(1)], y[m.any(1)]),
    "three": lambda x, y, m: F.mse_loss(x[x > 0], y[x > 0]) + F.l1_loss(y[x > 0], x[x > 0]),
    "in_two_functions": in_two_functions,
    "written_elsewhere": written_elsewhere,
}
PLACES: dict[str, Program] = {
    "where": lambda x, y, m: x[torch.where(m)].sum(),
    "nonzero": lambda x, y, m: x[m.nonzero(as_tuple=True)].mean(),
    "rows": lambda x, y, m: x[torch.where(m.any(1))[0]].mean(0).sum(),
    "rows_of_both": lambda x, y, m: F.mse_loss(x[torch.where(m[:, 0])], y[torch.where(m[:, 0])]),
    "beside_the_mask": lambda x, y, m: F.l1_loss(x[m.nonzero(as_tuple=True)], y[m]),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", [*EQUAL, *(f"places_{name}" for name in PLACES)])
def test_the_same_selection(name: str, grad: bool) -> None:
    program = EQUAL.get(name) or PLACES[name.removeprefix("places_")]
    outcome = by_error_rule(program, *draws(), grad=grad)
    outcome.only("device", "on_device")
    assert not outcome.ops["nonzero"]


def operand_written(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    h = x * 2
    first = y[h > 0.1]
    h.mul_(-1)
    return (first[:1] - y[h > 0.1][:1]).square().mean()  # one and none go together


def mask_written(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    mask = m.clone()
    first = torch.where(mask)
    mask.logical_not_()
    return x[first].sum()


def places_written(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    rows, columns = torch.where(m)
    rows.fill_(1)
    return x[rows, columns].sum()


KEPT: dict[str, Program] = {
    "another_number": lambda x, y, m: (x[x > 0.1][:1], y[x > 0.2][:1]),
    "drawn_twice": lambda x, y, m: F.mse_loss(
        x[torch.rand(5) > 0.5][:0], y[torch.rand(5) > 0.5][:0]
    ),
    "operand_written": operand_written,
    "mask_written": mask_written,
    "places_written": places_written,
    "in_another_order": lambda x, y, m: x[:5, :5][torch.where(m[:5, :5])[::-1]].sum(),
    "some_places": lambda x, y, m: x[torch.where(m)[0]].sum(),
    "of_a_smaller_mask": lambda x, y, m: x[torch.where(m[:3])].sum(),
    "of_numbers": lambda x, y, m: x[torch.where(y.relu())].sum(),
    "moved": lambda x, y, m: x[torch.where(m[:, 0])[0] - 1].sum(),
}


@pytest.mark.parametrize("name", KEPT)
def test_another_selection(name: str) -> None:
    outcome = by_error_rule(KEPT[name], *draws())
    assert {treatment for treatment, _ in outcome.treatments} == {"keep"}


def test_through_inductor() -> None:
    by_error_rule(EQUAL["mse"], *draws(), grad=True, codegen="inductor")
    by_error_rule(PLACES["rows_of_both"], *draws(), grad=True, codegen="inductor")
