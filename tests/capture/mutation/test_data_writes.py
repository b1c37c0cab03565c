"""Arms that write a tensor through its ``.data``, which autograd does not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass

UP, DOWN = torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 0.5])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 3.0]))
        self.register_buffer("held", torch.zeros(2))


class Initialised(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        if self.held.sum() == 0:
            self.weight.data.copy_(x * 2)
            self.held.fill_(1)
        return self.weight * x


class OfTheBuffer(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.held.data.add_(x)
        return self.weight * x + self.held


class InBothArms(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.weight.data.mul_(2)
        else:
            self.weight.data[0] = 5.0
        return self.weight * x


class TakenBefore(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        data = self.weight.data
        if x.sum() > 0:
            data.sub_(1)
        return self.weight * x


class Nested(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            if x[0] > 0.5:
                self.weight.data.add_(x)
            x = x * 2
        return self.weight * x


class OnlyRead(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * self.weight.data
        return self.weight * x


class OfAnIntermediate(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        h = self.weight + x
        if x.sum() > 0:
            h.data.clamp_(max=2.0)
        return h * 3


class WithAndWithout(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            if x.sum() > 0:
                self.weight.data.mul_(2)
            else:
                self.weight.mul_(3)
        return self.weight * x


class SavedBefore(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        y = self.weight * self.weight
        if x.sum() > 0:
            self.weight.data.mul_(2)
        return y * x


class HandedOn(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight.data if x.sum() > 0 else self.weight * 2


CAPTURED = [Initialised, OfTheBuffer, InBothArms, TakenBefore, Nested, OnlyRead, OfAnIntermediate]
KEPT = [WithAndWithout, SavedBefore, HandedOn]


def seen(module: Scaled, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Any]:
    module.zero_grad()
    y = run(x)
    if y.requires_grad:
        y.sum().backward()
    held = [module.weight, module.held]
    grad = module.weight.grad
    kept = [one.detach().tolist() for one in (y, *held)]
    return [*kept, None if grad is None else grad.tolist(), y.requires_grad, module.weight._version]


def compared(kind: type[Scaled], **options: Any) -> list[str]:
    torch._dynamo.reset()
    eager, module = kind(), kind()
    run = torch.compile(module, backend="fusepass", options={"codegen": "eager"} | options)
    for x in (UP, DOWN, UP, DOWN, UP):
        assert seen(eager, eager, x) == seen(module, run, x)
    report = fusepass.last_report(run).to_dict()
    torch._dynamo.reset()
    return [one["reason_code"] for one in report["decisions"] if one["treatment"] == "keep"]


@pytest.mark.parametrize("kind", CAPTURED)
def test_a_write_through_data_is_captured(kind: type[Scaled]) -> None:
    assert compared(kind) == []


@pytest.mark.parametrize("kind", KEPT)
def test_near_misses_are_kept_and_right(kind: type[Scaled]) -> None:
    assert compared(kind) != []
