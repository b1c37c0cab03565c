"""Selections by a mask that must stay what they are, and never make a program worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass

from ..support.side_by_side import by_error_rule

Program = Callable[..., Any]


def draws() -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(3)
    found = []
    for share in (0.6, 0.0, 1.0, 0.6):
        x, y = (torch.randn(5, 7, generator=generator) for _ in range(2))
        found.append((x, y, torch.rand(5, 7, generator=generator) < share))
    return found


def stored_in_order(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    h = x * 2
    h[m] = y[m].flip(0)
    return h


def two_masks_of_one_size(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    return (x[m] * y[m.flip(0)]).sum()


def stored_through_another(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    h = x * 2
    h[m] = y[m.flip(0)]
    return h


def mask_written_in_between(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    mask = m.clone()
    left = x[mask]
    mask.copy_(mask.flip(0))
    return (left * y[mask]).sum()


def written_through_a_view(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    chosen = x[m]
    chosen.view(1, -1).mul_(2)
    return chosen.sum()


KEPT: dict[str, Program] = {
    "returned": lambda x, y, m: x[m] * 2,
    "beside_its_sum": lambda x, y, m: (x[m], x[m].sum()),
    "two_masks_of_one_size": two_masks_of_one_size,
    "stored_in_order": stored_in_order,
    "stored_through_another": stored_through_another,
    "mask_written_in_between": mask_written_in_between,
    "sorted": lambda x, y, m: x[m].sort().values.sum(),
    "running_sum": lambda x, y, m: x[m].cumsum(0).sum(),
    "softmax_over_the_selected": lambda x, y, m: (x[m].softmax(0) * y[m]).sum(),
    "matrix_product": lambda x, y, m: (x[m.any(1)] @ y.t()).sum(),
    "linear": lambda x, y, m: F.linear(x[m.any(1)], y).mean(),
    "pairs": lambda x, y, m: (x[m][:, None] - x[m][None, :]).abs().sum(),
    "first_ones": lambda x, y, m: x[m][:1].sum(),
    "flipped": lambda x, y, m: (x[m].flip(0) * y[m]).sum(),
    "joined_along": lambda x, y, m: torch.cat([x[m], y[m]]).sum(),
    "masked_again": lambda x, y, m: x[m][y[m] > 0].sum(),
    "median": lambda x, y, m: x[m].median() if bool(m.any()) else x.sum(),
    "infinite_norm": lambda x, y, m: torch.linalg.vector_norm(torch.cat([x[m], x[0]]), torch.inf),
    "weights": lambda x, y, m: F.cosine_embedding_loss(x[m.any(1)], y[m.any(1)], y[m.any(1)][:, 0]),
    "scattered": lambda x, y, m: x.masked_scatter(m, y[m] * 2),
    "embedded": lambda x, y, m: F.embedding((x[m] * 0).long(), y).sum(),
    "written_through_a_view": written_through_a_view,
    "squeezed": lambda x, y, m: x[m].squeeze().sum(),
    "complex": lambda x, y, m: torch.complex(x, y)[m].abs().sum(),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str, grad: bool) -> None:
    outcome = by_error_rule(KEPT[name], *draws(), grad=grad)
    assert "keep" in {treatment for treatment, _ in outcome.treatments}, outcome.decisions


def test_random_numbers_are_those_of_eager() -> None:
    def program(x: Tensor, y: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(x[m], 0.5).sum(), torch.rand(3)

    outcome = by_error_rule(program, *draws())
    outcome.only("keep", "random_op")


def test_a_division_of_integers_that_is_not_selected_does_not_raise() -> None:
    def program(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        return (x.long()[m] // y.long()[m]).sum()

    given = [(x * 5, torch.where(m, y + 9, 0.0), m) for x, y, m in draws()]
    by_error_rule(program, *given).only("keep", "partial_op")


def test_switched_off() -> None:
    def program(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        h = x * 2
        h[m] = 0
        return h + x[m].sum()

    outcome = by_error_rule(program, *draws(), rules={"masked": False})
    outcome.only("keep", "rule_off")


def test_a_captured_selection_beside_a_kept_one() -> None:
    def program(x: Tensor, y: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        first = x[m].mean()
        second = y[m].sort().values
        return first, second, (x * y)[m].sum()

    outcome = by_error_rule(program, *draws(), grad=True)
    assert {
        d["line"] - outcome.decisions[0]["line"]: d["treatment"] for d in outcome.decisions
    } == {
        0: "device",
        1: "keep",
        2: "device",
    }


def test_masks_in_a_loop_that_dynamo_would_give_up() -> None:
    """A graph break in a loop: then no size is let in, and the frame is as without fusepass."""

    def program(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        chosen = x[m]
        total = x.sum()
        for _ in range(2):
            if chosen.shape[0] % 2 == 0:
                torch._dynamo.graph_break()
            total = total * 2
        return total

    by_error_rule(program, *draws())


def test_calls_that_need_a_known_size_get_one() -> None:
    def program(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        chosen = x[m]
        for value in chosen.unbind(0):
            x = x + value
        return x

    by_error_rule(program, *draws())


def test_layers() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(7, 7)

        def forward(self, x: Tensor, m: Tensor) -> Tensor:
            h = self.linear(x)
            h[m] *= 0.5
            return h - h[m].mean()

    torch.manual_seed(0)
    layers = nn.ModuleList([Layer() for _ in range(12)])

    def program(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x, m)
        return x

    with torch.no_grad():
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        for given in draws():
            got, want = compiled(*given), program(*given)
            torch.testing.assert_close(got, want, equal_nan=True)
        report = fusepass.last_report(compiled).to_dict()
    assert report["graph_breaks"] == []
    assert report["graphs"] == 1


@pytest.mark.parametrize("grad", [False, True])
def test_autocast(grad: bool) -> None:
    def program(x: Tensor, y: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = x @ y.t()
            rows = m.any(1)
            loss = F.mse_loss(h[rows], h[rows].detach() * 0.5)
            total = h[rows].float().mean() + h[rows].sum().float()
        return loss, total, h.float()[rows].mean()

    outcome = by_error_rule(program, *draws()[:1], grad=grad)
    assert ("device", "on_device") in outcome.treatments


def test_under_no_grad_and_back() -> None:
    def program(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x[m].abs().mean()
            h = x.clone()
            h[m] = y[m]
        return ((x / scale)[m] * y[m]).sum() + h[m].sum()

    by_error_rule(program, *draws()[:1], grad=True).only("device", "on_device")


def test_inside_arms() -> None:
    def program(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        if m.any():
            loss = F.l1_loss(x[m], y[m]) + x[m].std()
        else:
            loss = (x * y * 0).sum()
        return loss

    outcome = by_error_rule(program, *draws(), grad=True)
    assert outcome.breaks == []
    assert outcome.treatments[0][0] in ("where", "drop")


def test_selected_outside_and_used_in_an_arm() -> None:
    def program(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        chosen = x[m]
        total = y.sum()
        if total > 0:
            total = total + chosen.mean()
        return total + chosen.sum()

    outcome = by_error_rule(program, *draws(), grad=True)
    assert outcome.breaks == []
