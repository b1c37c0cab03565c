"""Attributes and buffers that both arms bind are bound once, where the arms meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass

from ..support.opaque import note
from ..support.side_by_side import Outcome, side_by_side, signed

TURNS = signed(1.0, -0.5, 2.0, 0.25)


class Holder(nn.Module):
    """Binds what a subclass says; the result shows all it holds."""

    held: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(4))
        self.plain = torch.ones(4)
        self.flag = False

    def taken(self, x: Tensor) -> None:
        self.plain = x * 2

    def other(self, x: Tensor) -> None:
        self.plain = self.plain - x

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.taken(x)
        else:
            self.other(x)
        return x * self.plain + self.held


def decided(module: nn.Module, **rest: Any) -> Outcome:
    """State that one call leaves is what the next call finds."""
    return side_by_side(module, *TURNS, **rest)


def test_bound_once_to_the_selection() -> None:
    module = Holder()
    outcome = decided(module)
    outcome.only("where", "pure_total")
    assert outcome.ops["where"] == 1


def test_the_object_sees_it_after_the_call() -> None:
    module = Holder()
    compiled = torch.compile(module, backend="fusepass", options={"codegen": "eager"})
    for (x,) in TURNS:
        before = module.plain
        compiled(x)
        assert torch.equal(module.plain, x * 2 if x.sum() > 0 else before - x)


class Registers(Holder):
    def taken(self, x: Tensor) -> None:
        self.register_buffer("held", x * 2)

    def other(self, x: Tensor) -> None:
        self.register_buffer("held", x - 1)


class Assigns(Holder):
    def taken(self, x: Tensor) -> None:
        self.held = x * 2

    def other(self, x: Tensor) -> None:
        self.held = self.held + x


@pytest.mark.parametrize("kind", [Registers, Assigns])
def test_buffers_stay_buffers(kind: type[Holder]) -> None:
    module = kind()
    decided(module).only("where", "pure_total")
    compiled = torch.compile(module, backend="fusepass", options={"codegen": "eager"})
    compiled(TURNS[0][0])
    assert list(module.state_dict()) == ["held"]
    assert torch.equal(module.state_dict()["held"], module.held)
    assert [name for name, _ in module.named_buffers()] == ["held"]


def test_a_failed_fork_leaves_nothing_bound() -> None:
    """The first arm binds; then the second cannot be captured, and all starts anew."""

    class Notes(Holder):
        def other(self, x: Tensor) -> None:
            self.plain = self.plain - x
            note(x)

    outcome = decided(Notes())
    assert {t for t, _ in outcome.treatments} == {"keep"}


def test_the_other_arm_reads_what_was_there_before() -> None:
    """And not what the arm traced before it has bound."""

    class Swaps(Holder):
        def taken(self, x: Tensor) -> None:
            self.plain = x * 100
            self.held = self.plain + 1

        def other(self, x: Tensor) -> None:
            self.held = self.plain * 2
            self.plain = self.held + x

    decided(Swaps()).only("where", "pure_total")


def test_gradients() -> None:
    class Weighted(Holder):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4) * 2)

        def taken(self, x: Tensor) -> None:
            self.plain = x * self.weight

        def other(self, x: Tensor) -> None:
            self.plain = x.detach() / self.weight

    fusepass.reset()
    module = Weighted()
    twin = Weighted()
    compiled = torch.compile(module, backend="fusepass", options={"codegen": "eager"})
    for (x,) in TURNS:
        for side, run in ((module, compiled), (twin, twin)):
            side.weight.grad = None
            run(x).sum().backward()
        assert module.weight.grad is not None
        assert twin.weight.grad is not None
        assert torch.equal(module.weight.grad, twin.weight.grad)


class InOneArm(Holder):
    def other(self, x: Tensor) -> None:
        pass


class InEachAnother(Holder):
    def other(self, x: Tensor) -> None:
        self.held = x * 2


class RegisteredInOneArm(Registers):
    def other(self, x: Tensor) -> None:
        pass


class NewInOneArm(Holder):
    def taken(self, x: Tensor) -> None:
        self.fresh = x * 2

    def other(self, x: Tensor) -> None:
        pass


class SavedInOneArm(Holder):
    def taken(self, x: Tensor) -> None:
        self.register_buffer("held", x * 2, persistent=False)

    def other(self, x: Tensor) -> None:
        self.register_buffer("held", x * 3)


@pytest.mark.parametrize("kind", [InOneArm, InEachAnother, RegisteredInOneArm])
def test_one_arm_only_binds_what_is_read_behind(kind: type[Holder]) -> None:
    outcome = decided(kind())
    assert set(outcome.treatments) == {("where", "pure_total")}, outcome.decisions
    assert outcome.breaks == []


def test_bound_behind_the_graph_where_one_arm_only_binds() -> None:
    decided(NewInOneArm()).only("where", "pure_total")


def test_one_arm_changes_which_buffers_are_saved() -> None:
    outcome = decided(SavedInOneArm())
    assert set(outcome.treatments) == {("where", "pure_total")}, outcome.decisions


class OtherShape(Holder):
    def other(self, x: Tensor) -> None:
        self.plain = x[:1] * 2


class OtherDtype(Holder):
    def other(self, x: Tensor) -> None:
        self.plain = x.double()


@pytest.mark.parametrize("kind", [OtherShape, OtherDtype])
def test_chosen_behind_the_graph_where_no_select_joins_the_values(kind: type[Holder]) -> None:
    decided(kind()).only("where", "pure_total")


def test_a_python_value_bound_beside_it() -> None:
    class Flags(Holder):
        def taken(self, x: Tensor) -> None:
            self.plain = x * 2
            self.flag = True

        def other(self, x: Tensor) -> None:
            self.plain = x * 3
            self.flag = False

    outcome = decided(Flags())
    assert set(outcome.treatments) == {("where", "pure_total")}
    assert outcome.breaks == []
