"""Operations whose gradient only one arm wants: made again inside it, or the branch is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.side_by_side import side_by_side

ROWS = [
    ([[1.0, 2.0], [3.0, -1.0]],),
    ([[0.0, 0.0], [0.0, 0.0]],),
    ([[0.1, 0.2], [-0.1, 0.05]],),
    ([[1.0, float("inf")], [3.0, -1.0]],),
    ([[1.0, float("nan")], [3.0, -1.0]],),
    ([[0.5, 0.5], [0.5, 0.5]],),
]
TURNS = [(torch.tensor(rows),) for (rows,) in ROWS]


def clipped(x: Tensor) -> Tensor:
    norm = x.norm()
    if norm > 1:
        x = x / norm
    return x * 1


def clipped_by_a_factor(x: Tensor) -> Tensor:
    norm = x.norm()
    factor = 1 / (norm + 1e-6)
    if norm > 1:
        x = x * factor
    return x * 1


def normalised(x: Tensor) -> Tensor:
    low, high = x.min(), x.max()
    return (x - low) / (high - low) if high > low else torch.zeros_like(x) * x


def thresholded(x: Tensor) -> Tensor:
    top = x.abs().flatten(1).amax(1)
    if (top > 1.0).any():
        top = top.clamp(min=1.0)[:, None]
        x = x.clamp(-top, top) / top
    return x * 1.0


def handed_on(x: Tensor) -> Tensor:
    norm = x.norm()
    return (norm if norm > 1 else x.sum()) * 2


def several_results(x: Tensor) -> Tensor:
    values, _ = x.log().max(1)
    return values * 2 if (x > 0).all() else x.sum(1)


def measured_by_other_operations(x: Tensor) -> Tensor:
    norm = x.norm()
    small = x.abs().sqrt().sum() < 1
    return x / norm if not small else x * 3


@pytest.mark.parametrize(
    ("program", "twice"),
    [
        (clipped, "norm"),
        (clipped_by_a_factor, "norm"),
        (normalised, "max"),
        (thresholded, "amax"),
        (handed_on, "norm"),
        (several_results, "log"),
        (measured_by_other_operations, "norm"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_made_again_inside_the_arm(program: Any, twice: str) -> None:
    outcome = side_by_side(program, *TURNS, grad=True)
    outcome.only("where", "pure_total")
    assert outcome.ops[twice] == 2
    without = side_by_side(program, *TURNS)
    without.only("where", "pure_total")
    assert without.ops[twice] == 1, "nothing to protect where there are no gradients"


def used_by_both(x: Tensor) -> Tensor:
    norm = x.norm()
    return x / norm if norm > 1 else x * norm


def used_afterwards(x: Tensor) -> Tensor:
    norm = x.norm()
    if norm > 1:
        x = x / norm
    return x * norm


@pytest.mark.parametrize("program", [used_by_both, used_afterwards])
def test_not_where_eager_runs_the_backward_anyway(program: Any) -> None:
    outcome = side_by_side(program, *TURNS, grad=True)
    outcome.only("where", "pure_total")
    assert outcome.ops["norm"] == 1


def another_use_between(x: Tensor) -> Tensor:
    # Gradients of x would add up in another order: those of x * x behind those of the norm.
    norm = x.norm()
    square = x * x
    if norm > 1:
        x = x / norm
    return x * square


def written_in_between(x: Tensor) -> Tensor:
    h = x * 1
    norm = h.norm()
    h.add_(1)
    if norm > 1:
        x = x / norm
    return x + h


def random(x: Tensor) -> Tensor:
    noise = F.dropout(x, 0.5).norm()
    if x.sum() > 1:
        x = x / noise
    return x * 1


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = (x @ x.t()).float().norm()
    if x.sum() > 1:
        x = x / y
    return x * 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 2 + 0 * x


def custom(x: Tensor) -> Tensor:
    norm = Doubled.apply(x.exp()).sqrt()
    if x.sum() > 1:
        x = x / norm
    return x * 1


@pytest.mark.parametrize(
    "program",
    [another_use_between, written_in_between, random, under_autocast, custom],
    ids=lambda program: program.__name__,
)
def test_kept_where_it_would_show(program: Any) -> None:
    outcome = side_by_side(program, *TURNS, grad=True)
    assert ("keep", "nan_grad") in outcome.treatments


def test_kept_where_a_gate_would_lay_the_operand_out_anew() -> None:
    """The norm would sum in another order."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        norm = w.norm()
        if norm > 1:
            x = x / norm
        return x * 1 + w.sum()

    spread = [(x, x.repeat_interleave(2, 1)[:, ::2]) for (x,) in TURNS]
    outcome = side_by_side(program, *spread, grad=True)
    assert ("keep", "nan_grad") in outcome.treatments
    side_by_side(program, *((x, x + 1) for (x,) in TURNS), grad=True).only("where", "pure_total")


def test_kept_where_gates_would_change_the_strides_an_arm_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There was nothing to gate in the arm before the root was made again inside it."""

    def program(x: Tensor) -> Tensor:
        root = x.sqrt()
        return root + 1 if (x > 0.2).all() else x + 2

    monkeypatch.setattr(
        "fusepass.graph.safety.gradient_gates.changes_output_strides", lambda *_: True
    )
    turns = [(torch.tensor(row),) for row in ([1.0, 4.0], [0.0, 4.0], [2.0, 3.0])]
    side_by_side(program, *turns, grad=True).only("keep", "stride_mismatch")


def test_not_where_a_round_trip_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusepass.graph.cost.roofline.host_round_trip", lambda device: 0.0)
    outcome = side_by_side(clipped, *TURNS, grad=True)
    assert ("keep", "nan_grad") in outcome.treatments


def nested(x: Tensor) -> Tensor:
    norm = x.norm()
    y = torch.zeros(())
    if norm > 1:
        z = x.sum()
        if z > 2:
            y = 1 / norm
    return x * y


def test_into_an_arm_of_an_arm() -> None:
    side_by_side(nested, *TURNS, grad=True)
