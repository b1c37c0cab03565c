"""Rarer effects and calls inside arms: only results are pinned, and everything they leave behind."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..support.inputs import B, signs
from ..support.program import FREE, WHERE, Family, keep

FAMILY = Family("outside_effects")
ONE = signs((B, 4))
WRITES = keep("side_effect")


@FAMILY.program(ONE, FREE)
def iterator_advanced(x: Tensor) -> Tensor:
    scales = iter((2.0, 3.0, 5.0))
    h = x * next(scales)
    if x.sum() > 0:
        h = h * next(scales)
    else:
        h = h + 1
    return h * next(scales)


@FAMILY.program(ONE, FREE)
def python_random_number(x: Tensor) -> Tensor:
    random.seed(3)
    h = x * 2
    if x.sum() > 0:
        h = h * random.random()
    return h + random.random()


@FAMILY.program(ONE, FREE)
def torch_seeded_in_arm(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        torch.manual_seed(99)
    return h + torch.rand(4)


@FAMILY.program(ONE, FREE, grad=True)
def grad_switched_off_in_arm(x: Tensor) -> Tensor:
    before = torch.is_grad_enabled()
    if x.sum() > 0:
        torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(before)
    return y + x


@FAMILY.program(ONE, WRITES | keep("untraceable"))
def deque_rotated(x: Tensor) -> Tensor:
    parts = deque([x * 2, x * 3])
    if x.sum() > 0:
        parts.rotate(1)
    return parts[0] - 1


@FAMILY.program(ONE, WRITES)
def defaultdict_filled_by_reading(x: Tensor) -> tuple[Tensor, list[str]]:
    seen: defaultdict[str, int] = defaultdict(int)
    if x.sum() > 0:
        seen["positive"] += 1
    return x * 2, list(seen)


@FAMILY.program(ONE, WRITES)
def set_extended(x: Tensor) -> tuple[Tensor, int]:
    names = {"a"}
    if x.sum() > 0:
        names.add("b")
    return x * 2, len(names)


@FAMILY.program(ONE, WHERE)
def list_item_replaced(x: Tensor) -> list[Tensor]:
    parts = [x + 1, x + 2]
    if x.sum() > 0:
        parts[0] = x * 2
    return parts


@FAMILY.program(ONE, WHERE)
def list_reversed_in_place(x: Tensor) -> list[Tensor]:
    parts = [x + 1, x + 2]
    if x.sum() > 0:
        parts.reverse()
    return parts


@FAMILY.program(ONE, WHERE)
def list_extended_by_operator(x: Tensor) -> list[Tensor]:
    parts = [x + 1]
    alias = parts
    if x.sum() > 0:
        parts += [x * 2]
    return alias


class Config:
    scale = 1.0


@FAMILY.program(ONE, WRITES)
def attribute_of_local_object(x: Tensor) -> Tensor:
    config = Config()
    config.scale = 2.0
    if x.sum() > 0:
        config.scale = 3.0
    return x * config.scale


class Meter:
    def __init__(self) -> None:
        self.total = torch.zeros(())
        self.calls = 0

    def update(self, value: Tensor) -> None:
        self.total = self.total + value
        self.calls += 1


@FAMILY.program(
    ONE,
    WHERE,
    built=True,
    state=lambda run: (run.__self__.total, run.__self__.calls),
)
def object_updated_by_method() -> Callable[[Tensor], Tensor]:
    class Model(Meter):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                self.update(x.sum())
            return x * 2

    return Model().forward


class Tracked:
    def __init__(self) -> None:
        self.writes: list[float] = []

    @property
    def level(self) -> float:
        return self.writes[-1]

    @level.setter
    def level(self, value: float) -> None:
        self.writes.append(value)


@FAMILY.program(ONE, WHERE)
def property_setter(x: Tensor) -> tuple[Tensor, list[float]]:
    tracked = Tracked()
    if x.sum() > 0:
        tracked.level = 2.0
    return x * 2, tracked.writes


@contextlib.contextmanager
def noting(log: list[str]) -> Iterator[None]:
    log.append("enter")
    yield
    log.append("exit")


@FAMILY.program(ONE, FREE)
def context_manager_with_effect(x: Tensor) -> tuple[Tensor, list[str]]:
    log: list[str] = []
    if x.sum() > 0:
        with noting(log):
            y = x * 2
    else:
        y = x * 3
    return y, log


@FAMILY.program(ONE, FREE, grad=True)
def hook_registered_in_arm(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0 and h.requires_grad:
        h.register_hook(lambda grad: grad * 10)
    return h + 1


@FAMILY.program(ONE, FREE)
def attribute_on_tensor(x: Tensor) -> tuple[Tensor, bool]:
    h = x * 2
    if x.sum() > 0:
        h.marked = True  # type: ignore[attr-defined]
    return h, hasattr(h, "marked")


@FAMILY.program(ONE, FREE)
def requires_grad_switched_on(x: Tensor) -> tuple[Tensor, bool]:
    h = (x * 2).detach()
    if x.sum() > 0:
        h.requires_grad_()
    return h * 3, h.requires_grad


@FAMILY.program(ONE, FREE)
def data_assigned(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h.data = x * 5
    return h + 1


@FAMILY.program(ONE, FREE)
def warning_in_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("positive", stacklevel=1)
        return x * 2
    return x * 3
