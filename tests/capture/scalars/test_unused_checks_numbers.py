"""Numbers that the program makes and does not use: what eager raises there is raised."""

# ruff: noqa: T201, F841 - the programs print, make what they do not use

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.capture.scalars import unused_checks

from ..support.side_by_side import side_by_side
from ..support.written import assert_same_text
from .test_deferred_items import is_read, items

P = torch.tensor([1.0, 2.0, 3.0, 4.0])
TURNS = [(P,), (P * math.nan,), (P * math.inf,), (-P,), (P * 0,), (P * 1,)]

MAY_RAISE: dict[str, Callable[[Tensor], Any]] = {
    "int": lambda x: int(x.max()),
    "int of item": lambda x: int(x.max().item()),
    "int of item compared": lambda x: int(x[0].item()) > 3,
    "full of item": lambda x: torch.full((2,), int(x[0].item())),
    "compared": lambda x: int(x.sum()) == 0,
    "computed": lambda x: int(x.max()) * 2 + 1,
    "round": lambda x: round(x.sum().item()),
    "floor": lambda x: math.floor(x.sum().item()),
    "ceil": lambda x: math.ceil(x[0].item()),
    "trunc": lambda x: math.trunc(x[0].item()),
    "sqrt": lambda x: math.sqrt(x.sum().item()),
    "inverse": lambda x: x.sum().item() ** -1,
    "list": lambda x: [int(v) for v in x],
    "length": lambda x: len([int(v) for v in x]),
    "pair": lambda x: (int(x.max()), 1),
    "full": lambda x: torch.full((2,), int(x[0])),
    "tensor": lambda x: torch.tensor([int(x[0])], dtype=torch.uint8),
    "sum": lambda x: x.long() + int(x[0]),
    "nothing selected": lambda x: x[x > 3].max(),
}
ONLY_INSIDE_TRY: dict[str, Callable[[Tensor], Any]] = {
    "quotient": lambda x: 1 / x.sum().item(),
    "whole quotient": lambda x: 1 // x.sum().item(),
    "rest": lambda x: 5 % x.sum().item(),
    "by a count": lambda x: 1 / len(x[x > 3]),
    "of both": lambda x: x.sum().item() / len(x[x > 3]),
}  # elsewhere Dynamo drops them, too, of a number that came in


class Unused:
    """Ways not to use what a function makes."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        self.make = make
        self.verbose = False

    def alone(self, x: Tensor) -> Tensor:
        n = self.make(x)
        if self.verbose:
            print(n)
        return x * 2

    def in_front_of_a_line(self, x: Tensor) -> Tensor:
        n = self.make(x)
        print("after")
        return x * 2

    def in_an_arm(self, x: Tensor) -> Tensor:
        print("before")
        if x[0] > 0:
            n = self.make(x)
            y = x * 2
        else:
            y = x * 3
        return y

    def in_front_of_a_branch(self, x: Tensor) -> Tensor:
        n = self.make(x)
        if x[0] > 0:
            x = x + 1
        return x * 2

    def overwritten(self, x: Tensor) -> Tensor:
        n = self.make(x)
        n = 3
        return x * n

    def caught(self, x: Tensor) -> Tensor:
        try:
            n = self.make(x)
        except (ValueError, ArithmeticError, RuntimeError) as error:
            print(error)
            x = x + 1
        return x * 2

    def finally_said(self, x: Tensor) -> Tensor:
        try:
            n = self.make(x)
        finally:
            print("done")
        return x * 2


WAYS = [name for name in vars(Unused) if not name.startswith("_")]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MAY_RAISE)
def test_its_exception_is_raised(name: str, way: str) -> None:
    side_by_side(getattr(Unused(MAY_RAISE[name]), way), *TURNS)


@pytest.mark.parametrize("way", ["caught", "finally_said"])
@pytest.mark.parametrize("name", ONLY_INSIDE_TRY)
def test_its_exception_is_raised_where_it_is_caught(name: str, way: str) -> None:
    side_by_side(getattr(Unused(ONLY_INSIDE_TRY[name]), way), *TURNS)


def test_the_report_says_why() -> None:
    outcome = side_by_side(Unused(MAY_RAISE["int"]).alone, *TURNS)
    is_read(outcome, "partial_op")
    assert any("though nothing uses that" in reason for reason in outcome.reasons)


def test_shown_only_when_something_else_is_raised() -> None:
    def program(x: Tensor) -> Tensor:
        n = int(x.max())
        if x[0] < 0:
            raise ValueError(f"largest {n}")
        return x * 2

    side_by_side(program, *TURNS)


def test_shown_in_a_line() -> None:
    def program(x: Tensor) -> Tensor:
        print("before")
        n = int(x.max())
        print("between")
        print(n)
        return x * 2

    given: list[Any] = [lambda x=x: (x,) for (x,) in TURNS]
    assert_same_text(program, *given)


def floats(x: Tensor) -> Tensor:
    n = float(x.sum())
    m = x.max().item() * 2.0 - n
    return x * 2


def truths(x: Tensor) -> Tensor:
    found = bool(x.sum() > 0)
    largest = not x.max().item() > 3, x.max().item() == x.min().item()
    bad = math.isnan(x.sum().item()), not math.isfinite(x.sum().item() * 2)
    return x * 2


def whole(x: Tensor) -> Tensor:
    n = int((x > 1).sum())
    m = int(x.argmax()) + n * n * n - abs(-n)
    half = n / 2, n // 2, n % 3, -n, n**3, max(n, 3), float(n)
    return x * 2


def rounded(x: Tensor) -> Tensor:
    n = round(x.sum().item(), 3)
    return x * 2


def divided_by_what_is_not_zero(x: Tensor) -> Tensor:
    n = x.sum().item() / 3, x.sum().item() % 2.0, 1 / (x.norm().item() + 1e-6)
    root = math.sqrt(x.square().sum().item())
    return x * 2


def read(x: Tensor) -> Tensor:
    x.sum().item()
    every = x.tolist()
    return x * 2


def in_a_try(x: Tensor) -> Tensor:
    try:
        n = x.sum().item() * 2
    except ValueError:
        x = x + 1
    return x * 2


CANNOT_RAISE = [floats, truths, whole, rounded, divided_by_what_is_not_zero, read, in_a_try]


@pytest.mark.parametrize("program", CANNOT_RAISE, ids=lambda p: p.__name__)
def test_unused_checks_that_cannot_raise_are_dropped(program: Callable[[Tensor], Tensor]) -> None:
    outcome = side_by_side(program, *TURNS)
    assert items(outcome) == []
    assert outcome.breaks == []
    assert len(outcome.graphs) == 1
    assert outcome.ops["item"] == 0


def of_numbers(x: Tensor) -> Tensor:
    n = int((x > 0).sum())
    return x * 2 if n > 1 and x.sum().item() / 2 > 1 else x - 1


def of_a_count(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() / (len(x[x > 0]) + 1) > 1 else x - 1


@pytest.mark.parametrize("program", [of_numbers, of_a_count], ids=lambda p: p.__name__)
def test_unused_operands_of_a_condition_are_dropped(program: Callable[[Tensor], Tensor]) -> None:
    outcome = side_by_side(program, *TURNS)
    assert outcome.breaks == []


def test_counts_that_cannot_raise_are_dropped() -> None:
    def program(x: Tensor) -> Tensor:
        n = len(x[x > 3])
        m = n / 2, 1 / (n + 1), n % 3, 2 * n - 1, float(n)
        return x * 2

    side_by_side(program, *TURNS).only("device", "on_device")


def test_unused_numbers_of_a_selection_leave_nothing_behind() -> None:
    def program(x: Tensor) -> Tensor:
        largest, total = x[x > 3].max(), x[x > 3].sum()
        return x * 2

    side_by_side(program, *TURNS).only("device", "on_device")


def test_a_fault_of_ours_costs_the_number_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise LookupError("ours")

    monkeypatch.setattr(unused_checks, "that_may_raise", fails)
    with pytest.warns(fusepass.errors.CaptureFault, match="LookupError"):
        outcome = side_by_side(Unused(MAY_RAISE["int"]).alone, *TURNS)
    is_read(outcome, "internal")
