"""What stands behind a raise: writes, printing, lists and other effects that must not happen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.inputs import InputSets, cases
from ..support.program import FREE, SINK, Family, keep
from .sink_after import EFFECT, ONE, TWO

FAMILY = Family("sink_effects")


@FAMILY.program(ONE, SINK)
def writes_before(x: Tensor) -> Tensor:
    x.add_(0.01)
    if x.sum() < 0:
        raise ValueError(f"written {x}")
    return x * 2


@FAMILY.program(ONE, SINK, tags="contexts")
def writes_after(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"not written {x}")
    x.mul_(2)
    return x + 1


@FAMILY.program(TWO, FREE, FREE)
def writes_everywhere(x: Tensor, y: Tensor) -> Tensor:
    x.add_(0.01)
    if x.sum() < 0:
        raise ValueError(f"first {x.sum():.3f} {y}")
    x[0] = 5.0
    y.t_().mul_(2).t_()
    if y.sum() < 0:
        raise ValueError(f"second {x.sum():.3f} {y}")
    x[:, 1:] += y[:, 1:]
    return x * y


@FAMILY.program(TWO, SINK, SINK)
def writes_of_everything(x: Tensor, y: Tensor) -> Tensor:
    x.add_(0.01)
    if x.sum() < 0:
        raise ValueError(f"first {x.sum():.3f} {y}")
    x[0] = 5.0
    y.view(-1)[::2].mul_(2)
    if y.sum() < 0:
        raise ValueError(f"second {x.sum():.3f} {y}")
    x[:, 1:] += y[:, 1:]
    return x * y


def shared() -> InputSets:
    sets = []
    for sign in (1, -1):
        x = torch.linspace(0.1, 1, 12).reshape(3, 4) * sign
        sets.append((x, x[1:], x[:, 0]))
    return sets


@FAMILY.program(cases(shared), SINK)
def writes_shared_memory(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"{row} {column}")
    row.add_(1)
    column.mul_(3)
    return x + 1


@FAMILY.program(ONE, SINK, grad=True, tags="contexts")
class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        if x.sum() < 0:
            raise ValueError(f"step {self.steps}: {x.mean():.3f}")
        self.seen.add_(x.detach().sum(0))
        return self.norm(x)


@FAMILY.program(ONE, EFFECT)
class CountsBefore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if x.sum() < 0:
            raise ValueError("counted")
        return x * 2


@FAMILY.program(cases(lambda: ONE(0)), SINK, state=lambda module: module.log, recompiles=True)
class NotesAfter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []
        self.last = None

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() < 0:
            raise ValueError("nothing noted")
        self.log.append(1)
        self.last = x
        return x * 2


@FAMILY.program(ONE, SINK)
def prints_before(x: Tensor) -> Tensor:
    print("begin")
    if x.sum() < 0:
        raise ValueError("after the print")
    return x * 2


@FAMILY.program(ONE, SINK)
def prints_after(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("before the print")
    print("went well")
    return x * 2


HELD: list[int] = []


def held(_: object) -> list[int]:
    found = list(HELD)
    HELD.clear()
    return found


@FAMILY.program(ONE, EFFECT, state=held)
def appends_before(x: Tensor) -> Tensor:
    HELD.append(1)
    if x.sum() < 0:
        raise ValueError("noted")
    return x * 2


@FAMILY.program(ONE, SINK)
def appends_to_its_own(x: Tensor) -> Tensor:
    parts = [x]
    parts.append(x * 2)
    kept = {"x": x}
    kept["y"] = parts[1]
    if x.sum() < 0:
        raise ValueError(f"own {len(parts)}")
    return parts[0] + kept["y"]


@FAMILY.program(ONE, EFFECT | keep("untraceable") | FREE)
def reshapes_after(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("shape")
    x.t_()
    return x + 1
