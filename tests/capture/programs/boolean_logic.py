"""and, or and not between tensors, and between tensors and what is known when compiling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import FREE, WHERE, Family

FAMILY = Family("boolean_logic")
ONE = signs((B, 4))
PAIR = signs((B, 4), (B, 4), flips=2)
THREE = signs((4,), (4,), (4,), flips=3)


@FAMILY.program(PAIR, WHERE, grad=True, tags="inductor contexts")
def both(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0 and y.sum() > 0:
        return x * y
    return x + y


@FAMILY.program(PAIR, WHERE, grad=True, tags="inductor contexts")
def either(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0 or y.sum() > 0:
        z = x * y
    else:
        z = x + y
    return z


@FAMILY.program(ONE, WHERE, grad=True)
def negated(x: Tensor) -> Tensor:
    if not x.sum() > 0:
        y = x * 2
    else:
        y = x * 3
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def twice_negated(x: Tensor) -> Tensor:
    return x.sin() if not (not (x.sum() > 0)) else x.cos()


@FAMILY.program(PAIR, WHERE, grad=True)
def negated_conjunction(x: Tensor, y: Tensor) -> Tensor:
    return x * y if not (x.sum() > 0 and y.sum() > 0) else x - y


@FAMILY.program(PAIR, WHERE, grad=True)
def and_not(x: Tensor, y: Tensor) -> Tensor:
    h = x * y
    if x.sum() > 0 and not y.sum() > 0:
        h = h + x
    return h


@FAMILY.program(THREE, WHERE, grad=True)
def three_terms(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * y * z if x.sum() > 0 and y.sum() > 0 and z.sum() > 0 else x + y + z


@FAMILY.program(THREE, WHERE, grad=True)
def and_inside_or(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * y * z if x.sum() > 0 and y.sum() > 0 or z.sum() > 0 else x + y + z


@FAMILY.program(THREE, WHERE, grad=True, tags="inductor")
def or_inside_and(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    if (x.sum() > 0 or y.sum() > 0) and z.sum() > 0:
        h = x * y * z
    else:
        h = x + y + z
    return h


@FAMILY.program(THREE, WHERE, WHERE, WHERE, grad=True)
def over_three_lines(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    # fmt: off
    if (
        x.sum() > 0
        and y.sum() > 0
        and z.sum() > 0
    ):
        return x * y * z
    # fmt: on
    return x + y + z


@FAMILY.program(PAIR, WHERE, grad=True)
def bitwise_and(x: Tensor, y: Tensor) -> Tensor:
    return x * y if (x.sum() > 0) & (y.sum() > 0) else x - y


@FAMILY.program(PAIR, WHERE, grad=True)
def bitwise_or_and_invert(x: Tensor, y: Tensor) -> Tensor:
    return x * y if ~(x.sum() > 0) | (y.sum() > 0) else x - y


@FAMILY.program(PAIR, WHERE, grad=True)
def logical_xor(x: Tensor, y: Tensor) -> Tensor:
    return x * y if torch.logical_xor(x.sum() > 0, y.sum() > 0) else x - y


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts")
def static_first(x: Tensor) -> Tensor:
    h = x * 2
    if x.dtype == torch.float32 and x.sum() > 0:
        h = h + 1
    return h


@FAMILY.program(ONE, grad=True)
def static_false_first(x: Tensor) -> Tensor:
    h = x * 2
    if x.dtype == torch.float16 and x.sum() > 0:
        h = h + 1
    return h


@FAMILY.program(ONE, WHERE, grad=True)
def static_last(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0 and x.dim() == 2:
        h = h + 1
    return h


@FAMILY.program(ONE, WHERE, grad=True)
def static_false_last(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0 and x.dim() == 3:
        h = h + 1
    return h


@FAMILY.program(ONE, grad=True)
def static_true_or(x: Tensor) -> Tensor:
    return x * 2 if x.dim() == 2 or x.sum() > 0 else x * 3


@FAMILY.program(ONE, WHERE, grad=True)
def static_false_or(x: Tensor) -> Tensor:
    return x * 2 if x.dim() == 3 or x.sum() > 0 else x * 3


@FAMILY.program(PAIR, WHERE, grad=True)
def static_between(x: Tensor, y: Tensor) -> Tensor:
    return x * y if x.sum() > 0 and x.shape == y.shape and y.sum() > 0 else x + y


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts")
class TrainingAndTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        h = x.exp()
        if self.training and x.sum() > 0:
            h = h.log1p()
        return h


@FAMILY.program(ONE, WHERE, grad=True)
class OptionalAttributeAndTensor(nn.Module):
    limit: float | None = 0.5

    def forward(self, x: Tensor) -> Tensor:
        h = x * 3
        if self.limit is not None and x.max() > self.limit + (x.sum() < 0) * 100:
            h = h.clamp(max=self.limit)
        return h


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def conjunction_kept_in_a_variable(x: Tensor, y: Tensor) -> Tensor:
    good = x.sum() > 0 and y.sum() > 0
    if good:
        return x * y
    return x - y


@FAMILY.program(PAIR, FREE, extra=True)
def builtin_any(x: Tensor, y: Tensor) -> Tensor:
    return x * y if any([x.sum() > 0, y.sum() > 0]) else x - y


@FAMILY.program(PAIR, FREE, extra=True)
def builtin_all_of_generator(x: Tensor, y: Tensor) -> Tensor:
    return x * y if all(t.sum() > 0 for t in (x, y)) else x - y
