# ruff: noqa: T201
"""An attribute that one arm only binds is bound behind the graph, if that arm was taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..support.left_state import same_state
from ..support.side_by_side import signed

TURNS = [x for (x,) in signed(1.0, -0.5, 2.0, 0.25)]


class Counter(nn.Module):
    """What most programs do: count, remember the best, note a value."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.best: Any = None
        self.lin = nn.Linear(4, 4)
        nn.init.ones_(self.lin.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        if x.sum() > 0:
            self.count += 1
            self.best = y.mean().detach()
        return y * 2


class Either(Counter):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.best = x * 2
            self.count = 0
        else:
            self.count += 1
        return x + 1


class Fresh(Counter):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.first = x
        self.second = 2
        if x[0] > 0:
            self.third = "t"
        return x * 2


class Deletes(Counter):
    def forward(self, x: Tensor) -> Tensor:
        self.mark = 1
        if x.sum() > 0:
            self.mark = 2
        if x[1] > 0:
            del self.mark
        return x * 2


class Nested(Counter):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.count = 1
            if x[0] > 1:
                self.count = 2
                self.best = x.exp()
        else:
            self.best = None
        return x * 2


class Returned(Counter):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.best = x * 2
        return x + 1, self.best


class Twice(Counter):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.count = 3
        if x[0] > 0:
            self.best = "b"
        if x[1] > 0:
            self.count = 5
        return x + 1


class Overwritten(Counter):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.best = x * 2
        self.best = 4
        return x + 1


class BehindBreak(Counter):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.best = x * 2
        torch._dynamo.graph_break()
        return x + 1 if self.best is None else x + self.best


class ClassDefault(nn.Module):
    hits = 0

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.hits += 1
        return x * 2


class Slots:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = 1


class OnSlots(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = Slots()

    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.held.a = 2
        return x * 2, self.held.a


class Setter:
    """A class whose own code runs where an attribute is bound."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name != "log":
            object.__setattr__(self, "last", name)

    def __call__(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.a = 3
        return x * 2


CAPTURED = [
    Counter, Either, Fresh, Deletes, Nested, Returned, Twice, Overwritten, ClassDefault, OnSlots,
]  # fmt: skip


@pytest.mark.parametrize("kind", CAPTURED)
def test_bound_if_the_arm_was_taken(kind: Any) -> None:
    same_state(kind, *TURNS)


def test_gradients_are_eagers() -> None:
    same_state(Counter, *TURNS, grad=True)


def test_what_a_graph_break_follows_is_bound_in_front_of_it() -> None:
    same_state(BehindBreak, *TURNS, breaks=1)


class Absent(Counter):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.fresh = x
        return x * 2 if hasattr(self, "fresh") else x


class FailsBehind(Counter):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.count = 7
        return x[torch.tensor([0, 9]) if x.shape[0] == 0 else (x > 5).long() * 9]


class FailsInArm(Counter):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.count = 7
            x = x[(x > 5).long() * 9]
        return x * 2


@pytest.mark.parametrize("kind", [Absent, FailsBehind, FailsInArm])
def test_kept(kind: Any) -> None:
    same_state(kind, *TURNS, torch.tensor([6.0, 1.0, 1.0, 1.0]), breaks=-1)


def test_the_reason_has_the_line_that_reads() -> None:
    report = same_state(Absent, *TURNS, breaks=-1)
    (reason,) = {d["reason"] for d in report["decisions"] if d["station"] == "capture"}
    line = Absent.forward.__code__.co_firstlineno + 3
    assert reason == f"line {line} reads 'fresh', which is there after one arm only"


class RaisesBehind(Counter):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.count += 1
            print("taken", x[0])
        if x.max() > 5:
            raise ValueError("too large")
        return x * 2


class RaisesInFront(Counter):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 5:
            raise ValueError(f"too large: {x.max()}")
        print("seen")
        if x.sum() > 0:
            self.count += 1
        return x * 2


@pytest.mark.parametrize(("kind", "breaks"), [(RaisesBehind, -1), (RaisesInFront, 0)])
def test_raises_and_lines_in_order(kind: Any, breaks: int) -> None:
    same_state(kind, *TURNS, torch.tensor([6.0, 1.0, 1.0, 1.0]), TURNS[0], breaks=breaks)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.level = 0, 0.5

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.count += 1
            self.level -= 0.25
        return x * 2


def test_a_counter_is_no_constant_of_the_graph() -> None:
    with torch._dynamo.config.patch(error_on_recompile=True):
        same_state(Counts, *TURNS, *TURNS)


class CountsAndTests(Counts):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.count += 1
            if self.count > 1:
                self.level = 2.0
        return x * 2


class Properties(Counts):
    def __init__(self) -> None:
        super().__init__()
        self.set_to: list[int] = []

    @property
    def size(self) -> int:
        return len(self.set_to)

    @size.setter
    def size(self, value: int) -> None:
        self.set_to.append(value)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.size += 1
        return x * 2


@pytest.mark.parametrize("kind", [CountsAndTests, Properties])
def test_a_counter_that_code_looks_at(kind: Any) -> None:
    same_state(kind, *TURNS, *TURNS, breaks=None)


class CountsInMethods(Counts):
    """A counter that is a constant of the graph first, and one of two values then."""

    def step(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.count += 1
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        for _ in range(2):
            x = self.step(x)
        return x * 2


def test_a_counter_that_several_branches_change() -> None:
    same_state(CountsInMethods, *TURNS, breaks=None)
