"""What a number read from a tensor can be: never less than what is promised, whatever the tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from fusepass.capture.scalars.scalar import Range, read_from
from tests.graph.arms import captured

INF, NAN = math.inf, math.nan
NUMBERS = torch.tensor([-0.0, 0.0, -1.0, 1.0, INF, -INF, NAN, 1e-45, -1e-45, 3e38, -3e38, 0.3])
WHOLE = torch.tensor([0, 1, -1, 3, -(2**31), 2**31 - 1, 50_000], dtype=torch.int32)
PAIRS = torch.cartesian_prod(torch.arange(len(NUMBERS)), torch.arange(len(NUMBERS)))


def range_of(program: Callable[[Tensor], Tensor], x: Tensor) -> Range:
    """The range of the number that is read from a program's result."""
    number = captured(program, x)[-1]
    return read_from(number, lambda _: True)


def read(program: Callable[[Tensor], Tensor], inputs: list[Tensor]) -> list[float]:
    return [float(program(x).item()) for x in inputs]


NEVER_NEGATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": lambda x: x[0].abs(),
    "exp": lambda x: x[0].exp(),
    "exp2": lambda x: torch.exp2(x[0]),
    "relu": lambda x: F.relu(x[0]),
    "sigmoid": lambda x: x[0].sigmoid(),
    "softmax": lambda x: x.softmax(0)[0],
    "softplus": lambda x: F.softplus(x[0]),
    "softplus, steeper": lambda x: F.softplus(x[0], 2.5, 0),
    "sqrt": lambda x: x[0].sqrt(),
    "square": lambda x: x[0].square(),
    "even power": lambda x: x[0] ** -4,
    "norm": lambda x: x.norm(),
    "norm of an order": lambda x: torch.linalg.vector_norm(x, -1),
    "norm, largest": lambda x: torch.linalg.norm(x, INF),
    "var": lambda x: x.var(),
    "std": lambda x: x.std(correction=1.5),
    "sum": lambda x: (x.abs() + x.square()).sum() * 2,
    "converted": lambda x: x.abs().sum().to(torch.float64),
    "clamp": lambda x: x[0].clamp(min=0, max=3),
    "truth": lambda x: (x > 0).any().to(torch.float32),
}
MAY_BE_NEGATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus of a negative scale": lambda x: F.softplus(x[0], beta=-1),
    "softplus of a negative scale, by position": lambda x: F.softplus(x[0], -0.5),
    "softplus of a low threshold": lambda x: F.softplus(x[0], threshold=-3),
    "rsqrt of minus zero": lambda x: x[0].rsqrt(),
    "added with a negative factor": lambda x: torch.add(x[0].abs(), x[1].abs(), alpha=-2),
    "clamp": lambda x: x[0].clamp(min=0, max=-1),
    "odd power": lambda x: x[0] ** 3,
    "square of a complex number": lambda x: torch.complex(x[0], x[1]).square().real,
}
INTEGERS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs of the largest negative": lambda x: x.abs().to(torch.float32),
    "a square that wraps": lambda x: x.square().to(torch.float64),
}


@pytest.mark.parametrize("name", NEVER_NEGATIVE)
def test_never_negative(name: str) -> None:
    program = NEVER_NEGATIVE[name]
    assert range_of(program, NUMBERS[:2].clone()).least == 0
    found = read(program, [NUMBERS[pair] for pair in PAIRS])
    assert not [number for number in found if number < 0]


@pytest.mark.parametrize("name", MAY_BE_NEGATIVE)
def test_may_be_negative(name: str) -> None:
    program = MAY_BE_NEGATIVE[name]
    assert range_of(program, NUMBERS[:2].clone()).least == -INF
    assert min(read(program, [NUMBERS[pair] for pair in PAIRS])) < 0


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap(name: str) -> None:
    program = INTEGERS[name]
    assert range_of(program, WHOLE[0].clone()).least == -INF
    assert min(read(program, list(WHOLE))) < 0


COUNTS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "sum": (lambda m: m.sum(), 300),
    "count": (lambda m: m.count_nonzero(), 300),
    "position": (lambda m: m.to(torch.float32).argmax(), 300),
    "repeated": (lambda m: m.sum().reshape(1, 1)[0], 300),
}
NO_COUNTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum in eight bits": lambda m: m.sum(dtype=torch.int8),
    "fewer bits": lambda m: m.sum().to(torch.int8),
    "fewer bits, then more": lambda m: m.sum().to(torch.int8).to(torch.int64),
    "the bits of a float": lambda m: m.sum().to(torch.float64).view(torch.int64),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    program, most = COUNTS[name]
    found = range_of(program, torch.ones(300, dtype=torch.bool))
    assert (found.least, found.most) == (0, most)


@pytest.mark.parametrize("name", NO_COUNTS)
def test_range_of_numbers_that_are_no_counts(name: str) -> None:
    found = range_of(NO_COUNTS[name], torch.ones(300, dtype=torch.bool))
    assert found.least < 0 or found.most > 300


def test_a_value_written_since_is_unknown() -> None:
    number: fx.Node = captured(lambda x: x[0].abs(), NUMBERS[:2].clone())[-1]
    assert read_from(number, lambda _: False).least == -INF
