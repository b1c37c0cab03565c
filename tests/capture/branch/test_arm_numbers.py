"""A number that one arm reads or computes is chosen behind the graph, and is a Python number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ..support.bookkeeping import LOSSES, kept_in_step, of_class


class Best:
    def __init__(self) -> None:
        self.best = math.inf

    def __call__(self, loss: Tensor) -> Tensor:
        if loss.item() < self.best:
            self.best = loss.item()
        return loss * 2


class BestUsed(Best):
    def __call__(self, loss: Tensor) -> Tensor:
        if loss.item() < self.best:
            self.best = loss.item()
        return loss.half() * self.best + self.best / 3


class Adapts(Best):
    """The number that is kept is computed from one that was read and one that was kept."""

    def __init__(self) -> None:
        self.d = 0.01

    def __call__(self, loss: Tensor) -> Tensor:
        hat = loss.item() * 0.1
        self.d = max(self.d, min(hat, self.d * 1.5))
        return loss * 2


class Mean(Best):
    def __call__(self, loss: Tensor) -> Tensor:
        if loss < 1.1 * 0.9:
            self.best = 0.9 * min(self.best, 1.0) + 0.1 * loss.item()
        return loss * 2


class Position(Best):
    def __init__(self) -> None:
        self.most = -1

    def __call__(self, loss: Tensor) -> Tensor:
        found = (loss * 10).long()
        if found.item() > self.most:
            self.most = found.item()
        return loss + self.most


class Truth(Best):
    def __init__(self) -> None:
        self.ok: Any = None

    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.ok = (loss > 0.8).item()
        return loss * 2


class InATuple(Best):
    def __call__(self, loss: Tensor) -> Any:
        pair = None
        if loss < 0.8:
            pair = loss.item(), {"lowest": -loss.item()}
        return loss, pair


class Nested(Best):
    def __init__(self) -> None:
        self.a, self.log = 0.5, 0

    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.a = loss.item() * 2 if loss > 0.8 else loss.item()
            self.log += 1
        return loss * 2


class Written(Best):
    """The number is the one that stood in the memory when it was read."""

    def __init__(self) -> None:
        self.held, self.last = torch.zeros(()), 0.0

    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.held += loss
            self.last = self.held.item()
            self.held *= 2
        return loss * self.held


KINDS = [Best, BestUsed, Adapts, Mean, Position, Truth, InATuple, Nested, Written]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("losses", [LOSSES, LOSSES[::-1]])
def test_numbers_that_arms_leave(kind: type, losses: tuple[float, ...]) -> None:
    kept_in_step(of_class(kind), losses).whole(2)


class FromACond(Best):
    """The arm may fail, so only the arm that is taken runs."""

    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.best = torch.linalg.cholesky(torch.eye(3) * loss).sum().item()
        return loss * 2


class FromACondUsed(Best):
    def __call__(self, loss: Tensor) -> Tensor:
        scale = 1.0
        if loss > 0.6:
            scale = torch.linalg.inv(torch.eye(3) * loss).sum().item()
        return loss * scale


class FromACondInside(Best):
    def __init__(self) -> None:
        self.best, self.count = 0.5, 0

    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            if loss > 0.9:
                self.best = torch.linalg.inv(torch.eye(3) * loss).sum().item()
            self.count += 1
        return loss * 2


class Drawn(Best):
    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.best = float((torch.rand(3) * loss).sum())
        return loss + torch.rand(())


class Converted(Best):
    """``float()`` and ``bool()`` of tensors of other dtypes."""

    def __init__(self) -> None:
        self.half, self.third, self.ok = 0.0, 0.0, False

    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.half = float(loss.half())
            self.third = float((loss * 10).long()) / 3
            self.ok = bool(loss > 0.85)
        return loss * self.half


@pytest.mark.parametrize("kind", [FromACond, FromACondUsed, FromACondInside, Drawn, Converted])
@pytest.mark.parametrize("losses", [LOSSES, LOSSES[::-1]])
def test_numbers_of_conds_and_of_conversions(kind: type, losses: tuple[float, ...]) -> None:
    kept_in_step(of_class(kind), losses).whole(2)


class Whole(Best):
    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.best = int(loss * 10)
        return loss * 2


def test_an_integer_of_a_float_that_may_be_infinite_is_kept() -> None:
    kept = kept_in_step(of_class(Whole))
    assert any("an integer made of NaN or infinity raises" in reason for reason in kept.reasons)


class Fails(Best):
    def __call__(self, loss: Tensor) -> Tensor:
        if torch.isnan(loss):
            raise ValueError("no loss")
        if loss.item() < self.best:
            self.best = loss.item()
        return loss * 2


def test_a_raise_in_front() -> None:
    nan = math.nan
    kept_in_step(of_class(Fails), (1.0, nan, 0.9, nan, 1.2, 0.3)).whole(2)


class StandIn(Best):
    """A division by the stand-in of an arm that is not taken must not fail."""

    def __init__(self) -> None:
        self.n = 3

    def __call__(self, loss: Tensor) -> Tensor:
        found, n = (loss > 0.5).sum(), 3
        if found > 0:
            n = found.item()
        return loss + 7 // n


def test_a_division_that_may_fail_is_kept() -> None:
    kept = kept_in_step(of_class(StandIn))
    assert any("division by zero" in reason for reason in kept.reasons)


class Text(Best):
    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.best = f"{loss.item():.3f}"  # type: ignore[assignment]
        return loss


def test_what_cannot_leave_an_arm_is_named() -> None:
    kept = kept_in_step(of_class(Text))
    assert kept.reasons
    assert not any("one of them cannot be" in reason for reason in kept.reasons)
