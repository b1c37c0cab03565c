"""Arms that leave two tensors which no select joins: what follows runs for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..support.side_by_side import side_by_side

TURNS = [((torch.arange(6.0).view(2, 3) + 1) * sign,) for sign in (1.0, -1.0, 0.5)]


def asks_for_the_shape(x: Tensor) -> tuple[int, torch.dtype]:
    if x.sum() > 0:
        x = x[:1]
    return x.shape[0], x.dtype


def branches_on_the_dtype(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x.half()
    if x.dtype == torch.float16:
        return x + 1
    return x * 3


def adds_a_dimension_and_takes_it_away(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x.unsqueeze(0)
    if x.dim() == 3:
        x = x.squeeze(0)
    return x * x


def three_in_a_row(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x[:1]
    if x.max() > 1:
        x = x.double()
    if x.min() > 0.6:
        x = x.t()
    return x * 2


def called_by_keyword(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        x = x[:1]
    return x.clamp(max=2.0), torch.zeros((2,), dtype=torch.bool)


def agrees_again(x: Tensor) -> Tensor:
    h = x * 2
    y = torch.cat((h, h)) if x.sum() > 0 else h.t()
    return y.exp().sum().log()


def view_of_the_input(x: Tensor) -> Tensor:
    return x.t() if x.sum() > 0 else x.reshape(3, 2)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        branches_on_the_dtype,
        adds_a_dimension_and_takes_it_away,
        three_in_a_row,
        called_by_keyword,
        agrees_again,
        view_of_the_input,
    ],
)
def test_one_graph(program: Callable[[Tensor], Any], grad: bool) -> None:
    outcome = side_by_side(program, *TURNS, grad=grad)
    assert {treatment for treatment, _ in outcome.treatments} == {"where"}, outcome.decisions
    assert outcome.breaks == []


def test_sizes_and_dtypes_are_chosen_behind_the_graph() -> None:
    side_by_side(asks_for_the_shape, *TURNS).only("where", "pure_total")


def test_each_layer_has_its_own_gradient() -> None:
    torch.manual_seed(0)
    narrow, wide = nn.Linear(3, 3), nn.Linear(3, 4)

    def program(x: Tensor) -> Tensor:
        y = narrow(x) if x.sum() > 0 else wide(x)
        return y.relu().mean(-1)

    outcome = side_by_side(program, *TURNS, grad=True)
    assert {treatment for treatment, _ in outcome.treatments} == {"where"}, outcome.decisions


def test_kept_where_too_much_would_run_for_both() -> None:
    """A graph break costs one wait; two tensors through a whole network cost its work twice."""

    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x[:1]
        for _ in range(20):
            x = torch.tanh(x) * 2
        return x

    side_by_side(program, *TURNS).only("keep", "python_value")


def test_kept_where_each_operation_would_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusepass.graph.cost.roofline.host_round_trip", lambda device: 0.0)

    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x[:1]
        y = x @ x.t()
        return y @ y

    side_by_side(program, *TURNS).only("keep", "python_value")
