"""Numbers that are read after all, behind the graph or in it, and what becomes of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

import fusepass.capture.scalars.call_table
from fusepass.errors import CaptureFault
from fusepass.torch_private.dynamo.hooks import Attempts

from ..support.side_by_side import side_by_side
from .test_deferred_items import (
    TURNS,
    cancelled,
    compared_in_a_loop,
    in_place,
    is_read,
    items,
    largest_of,
    made,
    normalised,
    scaled,
    sliced,
    stays,
)


def test_a_loop_that_tests_it() -> None:
    side_by_side(compared_in_a_loop, *TURNS).only("loop", "loop")


class Scale(nn.Module):
    scale = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.scale = x.sum().item()
        return x * self.scale


def returned(x: Tensor) -> tuple[Any, ...]:
    s = x.sum().item()
    n, flag = (x > 0).sum().item(), (x.sum() > 0).item()
    return x * s, s, n, flag, s * 2, n + 1, not flag, [n]


def returned_as_it_was(x: Tensor) -> tuple[Tensor, float, Tensor]:
    y = x.double()
    s = y[0].item()
    z = y + 1
    y.zero_()
    return z, s, y


def behind_a_graph_break(x: Tensor) -> Tensor:
    s, n = x.sum().item(), (x > 0).sum().item()
    torch._dynamo.graph_break()
    return x * s + n


@pytest.mark.parametrize("program", [Scale(), returned, returned_as_it_was, behind_a_graph_break])
def test_read_behind_the_graph(program: Callable[[Tensor], Any]) -> None:
    """Where only the caller needs a number, the host does not wait in the middle."""
    outcome = side_by_side(program, *TURNS, grad=True)
    assert set(items(outcome)) == {("late", "after_graph")}, outcome.decisions
    assert len(outcome.graphs) == 1 or program is behind_a_graph_break


def test_read_behind_the_graph_unless_it_raises() -> None:
    def program(x: Tensor) -> tuple[Tensor, int]:
        n = (x > 0).sum().item()
        if x.sum() < 0:
            raise ValueError(f"{n} of {x.max().item():.2f}")
        return x * 2, n

    outcome = side_by_side(program, *TURNS)
    assert ("late", "after_graph") in items(outcome)
    assert len(outcome.graphs) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"rules": {"item": False}}, "rule_off"), ({"treatment": "keep"}, "forced")],
)
def test_switched_off(options: dict[str, Any], reason: str) -> None:
    is_read(side_by_side(normalised, *TURNS, **options), reason)


def test_a_fault_of_ours_costs_the_number_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(fusepass.capture.scalars.call_table, "replace", fail)
    with pytest.warns(CaptureFault, match="a fault"):
        is_read(side_by_side(normalised, *TURNS), "internal")


def branched_after_a_write(x: Tensor) -> Tensor:
    y = x * 2
    s = y[0].item()
    y.fill_(-5.0)
    return y * 2 if s > 0 else y - 1


def branched_after_a_write_in_an_arm(x: Tensor) -> Tensor:
    y = x.double()
    s = y[0].item()
    if x.max() > 1.5:
        y.fill_(-5.0)
        z = y * 2 if s > 0 else y * 3
    else:
        z = y + 1
    return z - 1


@pytest.mark.parametrize("program", [branched_after_a_write, branched_after_a_write_in_an_arm])
def test_the_number_tested_is_that_of_the_call(program: Callable[[Tensor], Any]) -> None:
    outcome = side_by_side(program, *TURNS, grad=True)
    assert len(outcome.graphs) == 1


def stopped_if_not_a_number(x: Tensor) -> Tensor:
    s = x.sum().item()
    if math.isnan(s):
        raise ValueError(f"not a number: {s}")
    return x * s


def test_a_check_for_nan() -> None:
    nan = torch.tensor([1.0, math.nan, 2.0, 3.0, 4.0])
    outcome = side_by_side(stopped_if_not_a_number, *TURNS, (nan,), *TURNS)
    stays(outcome)
    assert "sink" in {used for used, _ in outcome.treatments}


@pytest.mark.parametrize("program", [normalised, cancelled, in_place, scaled, largest_of, made])
def test_dynamic_shapes(program: Callable[[Tensor], Any]) -> None:
    turns = [(torch.randn(n, generator=torch.Generator().manual_seed(n)),) for n in (5, 7, 9)]
    stays(side_by_side(program, *turns, dynamic=True))


def test_only_tested_items_need_branches_alone() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() > 0 else x - 1

    side_by_side(program, *TURNS, rules={"item": False}).only("where", "pure_total")


def test_the_report_names_the_use() -> None:
    outcome = side_by_side(sliced, *TURNS)
    (kept,) = [d for d in outcome.decisions if d["rule"] == "item"]
    assert kept["file"].endswith("test_deferred_items.py")
    assert "`x[…]` takes it" in kept["reason"]


def test_numbers_kept_do_not_cost_a_trace_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on behind a graph break knows already which numbers are needed."""
    restarts = []
    restart = Attempts.restart

    def counted(self: Attempts, reason: str, *, afresh: bool) -> NoReturn:
        restarts.append(reason)
        restart(self, reason, afresh=afresh)

    monkeypatch.setattr(Attempts, "restart", counted)

    def program(x: Tensor) -> tuple[Tensor, ...]:
        a = (x > 0).sum().item()
        b = (x > 1).sum().item()
        c = (x > 2).sum().item()
        d = (x > 3).sum().item()
        y = x * 2
        return y[:a], y[:b], y[:c], y[:d]

    side_by_side(program, *TURNS)
    assert len(restarts) == 1


def test_an_arm_that_looks_up_by_a_number() -> None:
    """It is no fault of ours, and no warning."""

    def program(x: Tensor) -> Tensor:
        if x[0] > 0:
            y = x * [1, 2, 3, 4][int(x[0])]
        else:
            y = x * 3
        return y

    outcome = side_by_side(program, *TURNS[:2])
    (reason,) = [d["reason"] for d in outcome.decisions if d["rule"] == "branch"]
    assert reason.startswith("an arm cannot be traced")  # torch 2.15 knows the line, too
    assert "Python asks for the value of a number" in reason


def test_an_operation_that_asks_for_a_number_logs_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def program(x: Tensor) -> Tensor:
        return x.std(correction=int(x.sum().abs().item()) % 2)

    with caplog.at_level(logging.ERROR, "torch._subclasses.fake_tensor"):
        outcome = side_by_side(program, *TURNS[:2])
    assert outcome.breaks
    assert not caplog.records
