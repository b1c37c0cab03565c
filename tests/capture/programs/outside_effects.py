"""Rarer effects and calls inside arms: only results are pinned, and everything they leave behind."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..inputs import B, InputSets, signs
from ..program import FREE, WHERE, Family, keep

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


@FAMILY.program(ONE, WRITES)
def list_item_replaced(x: Tensor) -> list[Tensor]:
    parts = [x + 1, x + 2]
    if x.sum() > 0:
        parts[0] = x * 2
    return parts


@FAMILY.program(ONE, WRITES)
def list_reversed_in_place(x: Tensor) -> list[Tensor]:
    parts = [x + 1, x + 2]
    if x.sum() > 0:
        parts.reverse()
    return parts


@FAMILY.program(ONE, WRITES)
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
    WRITES,
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


@FAMILY.program(ONE, WRITES)
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


class Scaled(torch.autograd.Function):
    """Its backward is not the derivative of its forward, so that a wrong turn shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 7 + x


@FAMILY.program(ONE, FREE, grad=True)
def autograd_function_in_arm(x: Tensor) -> Tensor:
    return Scaled.apply(x) if x.sum() > 0 else x * 3


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        if x.sum() > 0:
            return x * 2
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * x


@FAMILY.program(ONE, FREE, grad=True)
def branch_inside_autograd_function(x: Tensor) -> Tensor:
    return Branching.apply(x) + 1


def choose(h: Tensor) -> Tensor:
    return h.sin() if h.sum() > 0 else h.cos()


@FAMILY.program(ONE, FREE, grad=True)
def branch_inside_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(choose, x, use_reentrant=False) * 2


@FAMILY.program(ONE, FREE, grad=True)
def checkpoint_inside_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return checkpoint(torch.sin, x, use_reentrant=False)
    return x.cos()


@FAMILY.program(ONE, FREE)
def vmap_inside_arm(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row / row.abs().sum())(x) if x.sum() > 0 else x * 3


@FAMILY.program(ONE, FREE)
def derivative_inside_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return torch.func.grad(lambda t: t.pow(3).sum())(x)
    return x * 3


@FAMILY.program(ONE, FREE)
def numpy_inside_arm(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2) if x.sum() > 0 else x * 3


@FAMILY.program(ONE, FREE)
def cond_inside_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return torch.cond(x.amax() > 1, lambda t: t.sin(), lambda t: t.cos(), (x,))
    return x * 3


def optional(seed: int) -> InputSets:
    x, y = torch.ones(3), torch.tensor([1.0, 2.0, 3.0])
    return [(x, None), (-x, None), (x.clone(), y), (-x, y.clone())]


@FAMILY.program(optional, WHERE, recompiles=True, grad=True)
def optional_tensor_argument(x: Tensor, bias: Tensor | None) -> Tensor:
    h = x * 2 if bias is None else x + bias
    return h.exp() if x.sum() > 0 else h.sin()


def flags(seed: int) -> InputSets:
    x = torch.ones(3)
    return [(x * sign, flag) for flag in (True, False) for sign in (1.0, -1.0)]


@FAMILY.program(flags, WHERE, recompiles=True, grad=True)
def python_flag_argument(x: Tensor, double: bool) -> Tensor:
    h = x * 2 if double else x
    return h.exp() if x.sum() > 0 else h.sin()


def dtypes_and_shapes(seed: int) -> InputSets:
    base = torch.arange(1.0, 7.0)
    shapes = (base, base.reshape(2, 3), base.double(), base.half().reshape(3, 2))
    return [(x * sign,) for x in shapes for sign in (1, -1)]


@FAMILY.program(dtypes_and_shapes, WHERE, recompiles=True, grad=True)
def other_dtypes_and_shapes(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


@FAMILY.program(flags, WHERE, recompiles=True)
class ModuleFlag(nn.Module):
    def forward(self, x: Tensor, train: bool) -> Tensor:
        self.train(train)
        h = x.exp() if self.training else x.sin()
        return h * 2 if x.sum() > 0 else h * 3
