"""Tensors that both arms bind to an attribute or a buffer of an object older than the frame.

The attribute is bound once, where the arms meet. What one arm only binds is bound behind the graph,
if the arm was taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..support.inputs import InputSets, cases
from ..support.program import WHERE, Family

FAMILY = Family("attributes")


def alternating() -> InputSets:
    """Both outcomes in turn: what one call leaves, the next one finds."""
    x = torch.linspace(-1, 2, 12).reshape(3, 4)
    return [(x * sign,) for sign in (1, -1, -1, 1)]


TURNS = cases(alternating)


def many() -> InputSets:
    x = torch.linspace(-1, 2, 12).reshape(3, 4)
    return [(t.clone(),) for t in (x, x.flip(0), -x, -x.flip(0))]


MANY = cases(many)


class State(nn.Module):
    """Something of every kind to bind."""

    saved: Tensor
    unsaved: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("saved", torch.zeros(4))
        self.register_buffer("unsaved", torch.ones(4), persistent=False)
        self.plain = torch.full((4,), 2.0)
        self.other = torch.full((4,), 3.0)
        self.count = 0
        self.maybe: Tensor | None = None

    def result(self, x: Tensor) -> Tensor:
        return x * 2 + self.saved * self.unsaved + self.plain - self.other


def state_of(module: State) -> Any:
    """All that a call may bind, as a caller finds it."""
    return {
        **module.state_dict(),
        "unsaved": module.unsaved,
        "plain": module.plain,
        "other": module.other,
        "count": module.count,
        "maybe": module.maybe,
        "buffers": [name for name, _ in module.named_buffers()],
    }


Arm = Callable[[State, Tensor], None]


def bind(name: str, of: Callable[[State, Tensor], Any]) -> Arm:
    return lambda module, x: setattr(module, name, of(module, x))


def both(*arms: Arm) -> Arm:
    def run(module: State, x: Tensor) -> None:
        for arm in arms:
            arm(module, x)

    return run


def nothing(module: State, x: Tensor) -> None:
    pass


def unsaved(factor: float) -> Arm:
    return lambda module, x: module.register_buffer("unsaved", x[0] * factor, persistent=False)


def registered(name: str, factor: float) -> Arm:
    return lambda module, x: module.register_buffer(name, x[1] * factor)


# name: what the arm taken does, what the other does.
BOUND: dict[str, tuple[Arm, Arm]] = {
    "attribute": (bind("plain", lambda m, x: x[0] + 1), bind("plain", lambda m, x: x[1] - 1)),
    "buffer_assigned": (bind("saved", lambda m, x: -x[0]), bind("saved", lambda m, x: x[1] * 2)),
    "buffer_registered": (registered("saved", 2.0), registered("saved", 3.0)),
    "buffer_registered_unsaved": (unsaved(2.0), unsaved(3.0)),
    "from_its_old_value": (
        bind("plain", lambda m, x: torch.minimum(m.plain, x[0])),
        bind("plain", lambda m, x: m.plain * 0.5),
    ),
    "two_from_one_another": (
        both(
            bind("plain", lambda m, x: m.plain + x[0]),
            bind("other", lambda m, x: m.plain * 2),
        ),
        both(
            bind("plain", lambda m, x: m.plain - x[0]),
            bind("other", lambda m, x: m.other * 2),
        ),
    ),
    "in_other_order": (
        both(bind("plain", lambda m, x: x[0] * 2), bind("other", lambda m, x: x[1] * 2)),
        both(bind("other", lambda m, x: x[2] * 2), bind("plain", lambda m, x: x[0] * 3)),
    ),
    "twice": (
        both(bind("plain", lambda m, x: x[0] * 2), bind("plain", lambda m, x: m.plain + 1)),
        bind("plain", lambda m, x: x[0] * 3),
    ),
    "buffer_and_attribute": (
        both(registered("saved", 2.0), bind("plain", lambda m, x: x[0] * 2)),
        both(registered("saved", 3.0), bind("plain", lambda m, x: x[0] * 3)),
    ),
    "equal_number": (
        both(bind("plain", lambda m, x: x[0] * 2), bind("count", lambda m, x: 5)),
        both(bind("plain", lambda m, x: x[0] * 3), bind("count", lambda m, x: 5)),
    ),
}


def binding(arms: tuple[Arm, Arm]) -> nn.Module:
    class Binding(State):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                arms[0](self, x)
            else:
                arms[1](self, x)
            return self.result(x)

    return Binding()


for name, arms in BOUND.items():
    FAMILY.add(
        f"both_{name}",
        lambda arms=arms: binding(arms),
        TURNS,
        WHERE,
        state=state_of,
        tags="inductor" if name in {"attribute", "buffer_registered"} else "",
    )


# Arms that bind different attributes, or values that no `select` can choose between.
UNEQUAL: dict[str, tuple[Arm, Arm]] = {
    "attribute_in_one_arm": (bind("plain", lambda m, x: x[0] + 1), nothing),
    "attribute_in_the_else_arm": (nothing, bind("plain", lambda m, x: x[0] + 1)),
    "buffer_in_one_arm": (bind("saved", lambda m, x: x[0] + 1), nothing),
    "registered_in_one_arm": (registered("saved", 2.0), nothing),
    "one_of_two": (
        both(bind("plain", lambda m, x: x[0] * 2), bind("other", lambda m, x: x[1] * 2)),
        bind("plain", lambda m, x: x[0] * 3),
    ),
    "each_another": (
        bind("plain", lambda m, x: x[0] * 2),
        bind("other", lambda m, x: x[0] * 2),
    ),
    "number": (bind("count", lambda m, x: 1), bind("count", lambda m, x: 2)),
    "number_counted": (
        bind("count", lambda m, x: m.count + 1),
        bind("count", lambda m, x: m.count - 1),
    ),
    "none_or_tensor": (
        bind("maybe", lambda m, x: x[0] * 2),
        bind("maybe", lambda m, x: None),
    ),
    "other_shape": (
        bind("plain", lambda m, x: x[0] * 2),
        bind("plain", lambda m, x: x[:1] * 2),
    ),
    "other_dtype": (
        bind("plain", lambda m, x: x[0] * 2),
        bind("plain", lambda m, x: x[0].double()),
    ),
    "new_buffer": (registered("fresh", 2.0), nothing),
    "saved_or_not": (unsaved(2.0), registered("unsaved", 3.0)),
    "view_of_the_input": (
        bind("plain", lambda m, x: x[0]),
        bind("plain", lambda m, x: x[0] * 2),
    ),
    "deleted": (lambda m, x: delattr(m, "other"), nothing),
}


# Dynamo guards what the arms of these read: a number, whether an attribute exists, and the set of
# buffers that are not saved.
GUARDED = {"new_buffer", "number_counted", "saved_or_not"}


def unequal_state(module: State) -> Any:
    names = ("plain", "other", "count", "maybe", "saved", "unsaved")
    found = {name: getattr(module, name, "gone") for name in names}
    return found, list(module.state_dict())


for name, arms in UNEQUAL.items():
    FAMILY.add(
        f"unequal_{name}",
        lambda arms=arms: binding_unequal(arms),
        TURNS,
        WHERE,
        state=unequal_state,
        recompiles=name in GUARDED,
    )


def binding_unequal(arms: tuple[Arm, Arm]) -> nn.Module:
    class Binding(State):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                arms[0](self, x)
            else:
                arms[1](self, x)
            return x * 2

    return Binding()


@FAMILY.program(TURNS, WHERE, state=state_of, tags="inductor")
class MovingBounds(State):
    """Lower and upper bounds seen so far, begun on the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.tensor(float("inf"))
        self.other = torch.tensor(float("-inf"))

    def forward(self, x: Tensor) -> Tensor:
        if (self.plain > self.other) & (x.sum() > 0):
            self.plain, self.other = x.min(), x.max()
        else:
            self.plain = torch.minimum(self.plain, x.min())
            self.other = torch.maximum(self.other, x.max())
        return x.clamp(self.plain, self.other)


@FAMILY.program(TURNS, WHERE, grad=True, state=lambda module: module.plain.detach())
class BoundWithGradient(State):
    """What is bound belongs to the graph of this call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.plain = self.weight * x[0]
        else:
            self.plain = self.weight - x[0]
        return x * self.plain


class Box:
    """An object that is no module."""

    def __init__(self) -> None:
        self.value = torch.zeros(4)


@FAMILY.program(TURNS, WHERE, state=lambda module: module.box.value)
class AttributeOfAnotherObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box = Box()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.box.value = self.box.value + x[0]
        else:
            self.box.value = self.box.value - x[1]
        return self.box.value * x


@FAMILY.program(TURNS, WHERE, state=lambda module: (module.plain, module.other))
class OneTensorUnderTwoNames(State):
    """After one outcome both names are one tensor."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.plain = self.other = x[0] * 2
        else:
            self.plain, self.other = x[0] * 3, x[1] * 3
        return x * 2


@FAMILY.program(TURNS, WHERE, state=lambda module: module.plain)
class TheInputItself(State):
    """After one outcome the caller's tensor is what the attribute holds."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.plain = x
        else:
            self.plain = x * 3
        return x * 2


@FAMILY.program(MANY, WHERE, WHERE, state=state_of)
class BoundInTwoBranches(State):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.plain = x[0] + self.plain
        else:
            self.plain = x[1] - self.plain
        if x[0].sum() > 0:
            self.plain = self.plain * 2
        else:
            self.plain = self.plain + self.other
        return self.result(x)


@FAMILY.program(MANY, WHERE, WHERE, state=state_of)
class NestedBranches(State):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            if x[0].sum() > 0:
                self.plain = x[0] * 2
            else:
                self.plain = x[0] * 3
        else:
            self.plain = x[1] - self.plain
        return self.result(x)
