"""Loops: `while` on a tensor; branches, break and continue inside loops of known length."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.inputs import B, rows, signs
from ..support.opaque import note
from ..support.program import FREE, IN_GRAPH, WHERE, Family, keep

FAMILY = Family("loops")
ONE = signs((B, 4))
TWO = signs((B, 4), (B, 4), flips=2)
LOOP = keep("loop")
GRADED = keep("no_gradient")


@FAMILY.program(rows([8.0, 1.0], [0.5, 0.1]), IN_GRAPH, expect_grad=(GRADED,), grad=True)
def while_tensor(x: Tensor) -> Tensor:
    while x.sum() > 1:
        x = x / 2
    return x + 1


@FAMILY.program(rows([8.0, 1.0], [0.5, 0.1]), IN_GRAPH)
def while_not_tensor(x: Tensor) -> Tensor:
    while not x.abs().max() < 1:
        x = x * 0.5
    return x * 3


@FAMILY.program(rows([8.0, 1.0], [0.5, 0.1]), IN_GRAPH)
def while_with_counter(x: Tensor) -> tuple[Tensor, int]:
    steps = 0
    while x.sum() > 1:
        x = x / 2
        steps += 1
    return x, steps


# At most two rounds, known when compiling: it is unrolled.
@FAMILY.program(rows([8.0, 1.0], [2.0, 1.0], [0.5, 0.1]), WHERE)
def while_static_and_tensor(x: Tensor) -> Tensor:
    steps = 0
    while steps < 2 and x.sum() > 1:
        x = x - 1
        steps += 1
    return x * 2


@FAMILY.program(rows([8.0, 1.0], [0.5, 0.1]), IN_GRAPH)
def while_true_with_break(x: Tensor) -> Tensor:
    while True:
        if x.sum() < 1:
            break
        x = x / 3
    return x - 1


def halved(h: Tensor) -> Tensor:
    while h.norm() > 2:
        h = h / 2
    return h


@FAMILY.program(rows([8.0, 1.0], [0.5, 0.1]), IN_GRAPH)
def while_in_helper(x: Tensor) -> Tensor:
    return halved(x * 1.5) + 1


@FAMILY.program(rows([8.0, 1.0], [0.5, 0.1], [-9.0, 1.0]), WHERE, IN_GRAPH)
def while_inside_an_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        while x.sum() > 1:
            x = x / 2
    else:
        x = x * 2
    return x + 1


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts")
def for_with_branch(x: Tensor) -> Tensor:
    h = x + 0
    for step in range(4):
        if h.sum() > 0:
            h = h - step
        else:
            h = h + step
    return h


@FAMILY.program(ONE, WHERE, grad=True)
def for_over_rows(x: Tensor) -> Tensor:
    total = x.sum()
    for row in (x[0], x[1]):
        total = total + row.sum() if row.sum() > 0 else total * 2 - row.mean()
    return total


@FAMILY.program(ONE, WHERE, grad=True)
def for_over_zip(x: Tensor) -> Tensor:
    h = x * 2
    for scale, shift in zip((2.0, 3.0), (0.5, 0.25), strict=True):
        h = h * scale if h.mean() > 0 else h + shift
    return h


@FAMILY.program(TWO, WHERE, WHERE, grad=True)
def nested_for(x: Tensor, y: Tensor) -> Tensor:
    h = x + y
    for _ in range(2):
        if x.sum() > 0:
            h = h + x
        for scale in (0.5, 2.0):
            h = h * scale if y.sum() > 0 else h - y
    return h


@FAMILY.program(ONE, WHERE | FREE, grad=True)
def for_with_continue(x: Tensor) -> Tensor:
    h = x + 0
    for step in range(3):
        if h.sum() > 0:
            h = h - step
            continue
        h = h * 2
    return h


@FAMILY.program(rows([1.0, 2.0], [0.1, 0.2], [-1.0, -1.0]), FREE)
def for_with_break(x: Tensor) -> Tensor:
    h = x + 0
    for _ in range(4):
        if h.sum() > 2:
            break
        h = h * 2
    return h


@FAMILY.program(rows([1.0, 2.0], [0.1, 0.2], [-1.0, -1.0]), FREE)
def for_with_break_and_else(x: Tensor) -> Tensor:
    h = x + 0
    for _ in range(2):
        if h.sum() > 1:
            break
        h = h * 2
    else:
        h = h - 100
    return h


@FAMILY.program(rows([1.0, 2.0], [0.1, 0.2], [-1.0, -1.0]), FREE)
def return_inside_for(x: Tensor) -> Tensor:
    h = x + 0
    for step in range(3):
        if h.sum() > 2:
            return h * step
        h = h + 0.5
    return h - 1


@FAMILY.program(ONE, keep("untraceable"))
def kept_inside_for(x: Tensor) -> Tensor:
    h = x + 1e-3
    for step in range(2):
        if h.sum() > 0:
            note("step", step)
            h = h * 2
    return h


@FAMILY.program(ONE, keep("untraceable"))
class KeptInOneOfTheLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Prints(), _Prints()])

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        for layer in self.layers:
            h = layer(h)
        return h


class _Prints(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        if h.sum() > 0:
            note("layer")
            h = h + 1
        return h * 2


@FAMILY.program(ONE, WHERE, grad=True)
def while_on_a_python_counter(x: Tensor) -> Tensor:
    steps = 3
    h = x * 1.5
    while steps > 0:
        if h.sum() > 0:
            h = h - torch.ones(4)
        else:
            h = h.exp()
        steps -= 1
    return h


# The iterator over the layers holds an iterator of Python's own: each fork starts it anew.
LAYERS = rows(
    [8.0, 1, 2, 3],
    [-2.0, float("inf"), 1, 1],
    [float("nan"), 0, 0, 0],
    [0.0, 0, 0, 0],
    [40.0, -40, 40, -40],
    [-40.0, 40, -40, 40],
)


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])
        self.requires_grad_(False)


@FAMILY.program(LAYERS, WHERE)
class ChainedTestInALoop(Layered):
    def forward(self, x: Tensor) -> list[Tensor]:
        for layer in self.layers:
            x = layer(x)
            if x.sum() <= x.max() < 2:
                return [x]
        return [x]


@FAMILY.program(LAYERS, WHERE, WHERE)
class NestedReturnInALoop(Layered):
    def forward(self, x: Tensor) -> Tensor:
        for step, layer in enumerate(self.layers):
            x = layer(x) + step
            if x.sum() <= 4:
                if x.max() < 2:
                    return x
        return x


@FAMILY.program(LAYERS, WHERE)
class CountedLayers(Layered):
    def forward(self, x: Tensor) -> Tensor:
        for step, layer in enumerate(self.layers, 1):
            x = layer(x)
            if x.sum() > step:
                x = x.clamp(max=step)
        return x


@FAMILY.program(LAYERS, WHERE, WHERE)
class PairedLayers(Layered):
    def forward(self, x: Tensor) -> Tensor:
        for scale, (step, layer) in zip((1.0, 0.5, 2.0), enumerate(self.layers), strict=True):
            x = layer(x) * scale
            if x.isnan().any():
                return x + step
            if x.max() > 3:
                break
        return x * 2


@FAMILY.program(LAYERS, keep("loop"))
class NamedLayers(Layered):
    def forward(self, x: Tensor) -> Tensor:
        for name, layer in self.layers.named_children():  # a generator of the program
            x = layer(x) + len(name)
            if x.sum() <= 4:
                return x
        return x


@FAMILY.program(LAYERS, WHERE)
class LayersTakenByHand(Layered):
    def forward(self, x: Tensor) -> Tensor:
        held = {"rest": [iter(self.layers)]}
        x = next(held["rest"][0])(x)
        if x.sum() > 1:
            x = next(held["rest"][0])(x)
        else:
            x = next(held["rest"][0])(x) * 2
        return next(held["rest"][0])(x)
