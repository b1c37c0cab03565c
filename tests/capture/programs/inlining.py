"""Branches outside the compiled function itself: in whatever it calls and Dynamo inlines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..support.inputs import B, signs
from ..support.opaque import note
from ..support.program import FREE, WHERE, Family, keep

FAMILY = Family("inlining")
ONE = signs((B, 4))
PAIR = signs((B, 4), (B, 4), flips=2)


def scaled(h: Tensor) -> Tensor:
    if h.sum() > 0:
        h = h * 2
    else:
        h = h * 3
    return h


@FAMILY.program(ONE, WHERE, grad=True, tags="inductor contexts")
def helper(x: Tensor) -> Tensor:
    return scaled(x) + 1


@FAMILY.program(PAIR, WHERE, grad=True)
def helper_on_two_tensors(x: Tensor, y: Tensor) -> Tensor:
    return scaled(x) * scaled(y)


def outer(h: Tensor) -> Tensor:
    return scaled(h.sin() + h) - 1


@FAMILY.program(ONE, WHERE, grad=True)
def helper_two_levels_deep(x: Tensor) -> Tensor:
    return outer(x) * x


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def helper_called_inside_an_arm(x: Tensor, y: Tensor) -> Tensor:
    if y.sum() > 0:
        z = scaled(x) + y
    else:
        z = x - y
    return z


def pair_of(h: Tensor) -> tuple[Tensor, Tensor]:
    if h.sum() > 0:
        return h * 2, h.sum(0)
    return h * 3, h.mean(0)


@FAMILY.program(ONE, WHERE, grad=True)
def helper_returning_two(x: Tensor) -> Tensor:
    a, b = pair_of(x)
    return a + b


def predicate_of(h: Tensor) -> Tensor:
    return h.sum() > 0


@FAMILY.program(ONE, WHERE, grad=True)
def helper_makes_the_predicate(x: Tensor) -> Tensor:
    return x * 2 if predicate_of(x) else x * 3


@FAMILY.program(ONE, WHERE, grad=True, built=True)
def closure() -> Callable[[Tensor], Tensor]:
    scale, shift = 2.5, torch.tensor([1.0, 2.0, 3.0, 4.0])

    def run(x: Tensor) -> Tensor:
        return x * scale if x.sum() > 0 else x + shift

    return run


@FAMILY.program(ONE, WHERE, grad=True)
def inner_function(x: Tensor) -> Tensor:
    bias = x.mean()

    def choose(h: Tensor) -> Tensor:
        if h.sum() > 0:
            return h + bias
        return h - bias

    return choose(x * 2)


@FAMILY.program(ONE, WHERE, grad=True)
def lambda_with_ternary(x: Tensor) -> Tensor:
    choose = lambda h: h.sin() if h.sum() > 0 else h.cos()  # noqa: E731  # a lambda is the point
    return choose(x) + choose(x.clone())


@FAMILY.program(ONE, WHERE, grad=True, built=True)
def partial_application() -> Callable[[Tensor], Tensor]:
    def choose(scale: float, h: Tensor, *, shift: float = 1.0) -> Tensor:
        if h.sum() > 0:
            return h * scale
        return h - shift

    return functools.partial(choose, 3.0, shift=2.0)


class Gate:
    slope = 0.25

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def method(self, h: Tensor) -> Tensor:
        if h.sum() > 0:
            return h * self.scale
        return h * self.slope

    @staticmethod
    def static(h: Tensor) -> Tensor:
        return h.exp() if h.sum() > 0 else h.sinh()

    @classmethod
    def klass(cls, h: Tensor) -> Tensor:
        return h + cls.slope if h.sum() > 0 else h - cls.slope

    @property
    def double(self) -> Callable[[Tensor], Tensor]:
        return lambda h: h * 2 if h.sum() > 0 else h / 2

    def __call__(self, h: Tensor) -> Tensor:
        return h.tanh() if h.sum() > 0 else h.sigmoid()


@FAMILY.program(ONE, WHERE, grad=True)
def method(x: Tensor) -> Tensor:
    return Gate(2.0).method(x)


@FAMILY.program(ONE, WHERE, grad=True, built=True)
def bound_method_compiled() -> Callable[[Tensor], Tensor]:
    return Gate(5.0).method


@FAMILY.program(ONE, WHERE, grad=True)
def static_method(x: Tensor) -> Tensor:
    return Gate.static(x) * 2


@FAMILY.program(ONE, WHERE, grad=True)
def class_method(x: Tensor) -> Tensor:
    return Gate.klass(x) * 2


@FAMILY.program(ONE, WHERE, grad=True)
def through_property(x: Tensor) -> Tensor:
    return Gate(1.0).double(x)


@FAMILY.program(ONE, WHERE, grad=True)
def callable_object(x: Tensor) -> Tensor:
    gate = Gate(1.0)
    return gate(x) + gate(x * 2)


def doubled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs) * 2

    return wrapper


@doubled
def decorated(h: Tensor, by: float = 1.0) -> Tensor:
    if h.sum() > 0:
        return h + by
    return h - by


@FAMILY.program(ONE, WHERE, grad=True)
def decorated_helper(x: Tensor) -> Tensor:
    return decorated(x, by=0.5)


@FAMILY.program(ONE, WHERE, grad=True)
def function_as_argument(x: Tensor) -> Tensor:
    def apply(function: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
        return function(h) if h.sum() > 0 else -function(-h)

    return apply(torch.sqrt, x.abs() * x.sum().sign()) if x.dim() == 9 else apply(torch.exp, x)


@FAMILY.program(ONE, WHERE, grad=True)
def list_comprehension(x: Tensor) -> Tensor:
    rows = [row * 2 if row.sum() > 0 else row * 3 for row in (x[0] + x.sum(), x[1] - x.sum())]
    return torch.stack(rows)


@FAMILY.program(ONE, WHERE, grad=True)
def dict_comprehension(x: Tensor) -> dict[str, Tensor]:
    signed = {"plus": x.sum(0) + x.sum(), "minus": x.sum(0) - x.sum()}
    return {name: t.sin() if t.sum() > 0 else t.cos() for name, t in signed.items()}


@FAMILY.program(ONE, WHERE, grad=True)
def mapped(x: Tensor) -> list[Tensor]:
    return list(map(scaled, (x, -x, x * x * x)))


@FAMILY.program(ONE, FREE)
def generator(x: Tensor) -> Tensor:
    def halves() -> Iterator[Tensor]:
        if x.sum() > 0:
            yield x * 2
        else:
            yield x * 3
        yield x

    return sum(halves())  # type: ignore[return-value]


def fixed_depth(h: Tensor, depth: int) -> Tensor:
    if depth == 0:
        return h
    if h.sum() > 0:
        h = h * 2
    else:
        h = h - 1
    return fixed_depth(h, depth - 1)


@FAMILY.program(ONE, WHERE, grad=True)
def recursion(x: Tensor) -> Tensor:
    return fixed_depth(x, 3)


def keyword_only(h: Tensor, *, positive: Callable[[Tensor], Tensor] = torch.relu) -> Tensor:
    return positive(h) if h.sum() > 0 else h


@FAMILY.program(ONE, WHERE, grad=True)
def default_function_argument(x: Tensor) -> Tensor:
    return keyword_only(x * 2) + keyword_only(x * 3, positive=torch.tanh)


def joined(*parts: Tensor, **named: Tensor) -> Tensor:
    total = parts[0] + named["extra"]
    if total.sum() > 0:
        total = total + parts[1]
    return total


@FAMILY.program(PAIR, WHERE, grad=True)
def star_and_keywords(x: Tensor, y: Tensor) -> Tensor:
    return joined(x, y * 2, extra=y) + x * y


def with_a_note(h: Tensor) -> Tensor:
    if h.sum() > 0:
        note("positive")
        return h * 2
    return h * 3


@FAMILY.program(ONE, keep("untraceable"), grad=True)
def kept_in_helper(x: Tensor) -> Tensor:
    return with_a_note(x + 1e-3) - 1


@FAMILY.program(PAIR, WHERE, keep("untraceable"), grad=True)
def captured_then_kept(x: Tensor, y: Tensor) -> Tensor:
    h = x * 2 if x.sum() > 0 else x * 3
    if y.sum() > 0:
        note("second")
        h = h + y
    else:
        h = h - y
    return h


@FAMILY.program(PAIR, keep("untraceable"), WHERE, grad=True)
def kept_then_captured(x: Tensor, y: Tensor) -> Tensor:
    if y.sum() > 0:
        note("first")
        h = x + y
    else:
        h = x - y
    return h * 2 if x.sum() > 0 else h * 3
