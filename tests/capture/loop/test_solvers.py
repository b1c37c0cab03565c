"""Seven iterative programs in several spellings are one graph, equal to eager, rounds too."""

from __future__ import annotations

from typing import Any

import pytest

from ..support.side_by_side import side_by_side
from .solvers import SOLVERS

SLOW = {"cg_with_line_search", "Kalman"}
KEPT = {"Kalman"}  # an arm writes a buffer and the row of a tensor


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in SOLVERS
        if name not in KEPT
    ],
)
def test_one_graph_equal_to_eager(name: str) -> None:
    solver = SOLVERS[name]
    outcome = side_by_side(solver.make(), *solver.calls)
    assert (outcome.breaks, len(outcome.graphs)) == ([], 1)
    assert "loop" in {treatment for treatment, _ in outcome.treatments}


THROUGH_INDUCTOR = [
    "power_until_allclose",
    "Sinkhorn",
    "bisect_with_exact_hit",
    "ode_with_tensor_time",
    "kalman_until_lost",
    "DecodeInRange",
    "cg_in_place",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", THROUGH_INDUCTOR)
def test_through_inductor(name: str) -> None:
    solver = SOLVERS[name]
    outcome: Any = side_by_side(solver.make(), *solver.calls, by_rule=True, codegen="inductor")
    assert (outcome.breaks, len(outcome.graphs)) == ([], 1)
