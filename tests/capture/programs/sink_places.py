"""Raises at depth: in helpers, loops, branches, with-blocks; and where something else would see it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import FREE, SINK, WHERE, Family, keep

FAMILY = Family("sink_places")
ONE = signs((B, 4))
TWO = signs((B, 4), (B, 4), flips=2)
THREE = signs((B, 4), (B, 4), (B, 4), flips=3)
RAISES = keep("raises")
# Where the try statement cannot be compiled, the helper is a frame of its own and its caller eager.
OWN_FRAME = keep("raises") | SINK
GENERATOR = keep("generator")


def positive(h: Tensor, name: str) -> Tensor:
    if h.sum() < 0:
        raise ValueError(f"{name} sums to {h.sum():.3f}")
    return h * 2


def fail(h: Tensor) -> None:
    raise ArithmeticError(f"failed with {h.mean():.3f}")


@FAMILY.program(TWO, SINK, grad=True, tags="contexts")
def helper_called_twice(x: Tensor, y: Tensor) -> Tensor:
    return positive(x, "x") + positive(y, "y")


@FAMILY.program(ONE, SINK, grad=True)
def helper_that_always_raises(x: Tensor) -> Tensor:
    if x.sum() < 0:
        fail(x)
    return x * 2


@FAMILY.program(ONE, SINK)
def helper_that_always_raises_in_else(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
    else:
        y = x * 3
        fail(y)
    return y + 1


class Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def check(self, h: Tensor) -> None:
        if h.isnan().any() or h.sum() < -1e3:
            raise FloatingPointError(f"{type(self).__name__}: {h.sum()}")

    def forward(self, h: Tensor) -> Tensor:
        self.check(h)
        return self.linear(h)


def overflowing(seed: int) -> list[tuple[Tensor, ...]]:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    nan = x.clone()
    nan[1, 2] = float("nan")
    return [(x,), (nan,), (x - 1e6,), (x * 2,)]


@FAMILY.program(overflowing, SINK | WHERE, grad=True, tags="contexts")
class ManyLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Checked() for _ in range(5))

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(h)
        return h


@FAMILY.program(overflowing, SINK, grad=True)
class LoopWithNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if h.abs().max() > 1e5:
                raise OverflowError(f"layer {number}: {h.abs().max():.1f}")
            h = layer(h)
        return h


@FAMILY.program(THREE, SINK, SINK, SINK, grad=True, tags="contexts")
def first_of_three_wins(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("x")
    h = x * 2
    if y.sum() < 0:
        raise TypeError(f"y {y.mean():.2f}")
    h = h + y
    assert z.sum() > 0, f"z {z.mean():.2f}"
    return h * z


@FAMILY.program(TWO, WHERE | SINK, grad=True)
def either(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() < 0 or y.sum() < 0:
        raise ValueError(f"one of them: {x.sum():.3f} {y.sum():.3f}")
    return x * y


@FAMILY.program(TWO, WHERE | SINK, grad=True)
def both(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() < 0 and y.sum() < 0:
        raise ValueError(f"both of them: {x.sum():.3f} {y.sum():.3f}")
    return x * y


@FAMILY.program(TWO, SINK, SINK)
def one_after_the_other(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("x")
    elif y.sum() < 0:
        raise TypeError("y")
    return x * y


@FAMILY.program(TWO, WHERE, SINK, grad=True)
def in_an_arm(x: Tensor, y: Tensor) -> Tensor:
    h = x + y
    if x.sum() > 0:
        if y.sum() < 0:
            raise ValueError(f"nested {h.sum():.3f}")
        h = h * 2
    else:
        h = h - 1
    return h


@FAMILY.program(THREE, WHERE, WHERE, SINK, grad=True)
def deep_in_arms(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    h = x + y
    if x.sum() > 0:
        h = h + 1
        if not (y.sum() > 0):
            h = h * z
            if z.sum() < 0:
                raise ValueError(f"deep {h.sum():.3f}")
        h = h * 2
    return h + z


@FAMILY.program(TWO, SINK, WHERE)
def helper_in_an_arm(x: Tensor, y: Tensor) -> Tensor:
    h = x * 1
    if x.sum() > 0:
        h = positive(y, "y")
    return h


@FAMILY.program(TWO, WHERE, SINK)
def after_a_branch(x: Tensor, y: Tensor) -> Tensor:
    h = x * 2 if x.sum() > 0 else x * 3
    if (h + y).sum() < 0:
        raise ValueError(f"joined {h.sum():.3f} {h}")
    return h + y


@FAMILY.program(ONE, SINK, grad=True)
def in_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        if x.sum() < 0:
            raise ValueError(f"{x.sum()}")
        y = x * 2
    return x * y


@torch.no_grad()
def checked_without_grad(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"{x.sum()}")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True)
def decorated_helper(x: Tensor) -> Tensor:
    return checked_without_grad(x) + x


@FAMILY.program(signs((B, 4), (B, 4)), SINK)
def in_autocast(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = x @ y.abs().T
        if h.sum() < 0:
            raise ValueError(f"{h.sum()} {(h @ h).sum()}")
    return h.float()


@FAMILY.program(TWO, SINK)
def in_a_comprehension(x: Tensor, y: Tensor) -> Tensor:
    parts = [positive(part, "part") for part in (x, y)]
    return parts[0] + parts[1]


@FAMILY.program(TWO, GENERATOR | OWN_FRAME)
def in_a_generator(x: Tensor, y: Tensor) -> Tensor:
    return sum(positive(part, "part") for part in (x, y))


@FAMILY.program(ONE, RAISES)
def caught_here(x: Tensor) -> Tensor:
    try:
        if x.sum() < 0:
            raise ValueError("caught")
        y = x * 2
    except ValueError:
        y = x * 3
    return y


@FAMILY.program(ONE, OWN_FRAME)
def caught_by_the_caller(x: Tensor) -> Tensor:
    try:
        y = positive(x, "x")
    except (KeyError, ArithmeticError, ValueError) as error:
        y = x * len(str(error))
    return y


@FAMILY.program(ONE, OWN_FRAME)
def caught_as_its_base(x: Tensor) -> Tensor:
    try:
        y = positive(x, "x")
    except Exception:  # noqa: BLE001 - the program is about it
        y = x * 3
    return y


@FAMILY.program(ONE, SINK)
def another_is_caught(x: Tensor) -> Tensor:
    try:
        y = positive(x, "x")
    except TypeError:
        y = x * 3
    except (KeyError, IndexError) as error:
        raise RuntimeError("other") from error
    return y


@FAMILY.program(ONE, OWN_FRAME)
def cleaned_up(x: Tensor) -> Tensor:
    log = []
    try:
        y = positive(x, "x")
    finally:
        log.append(1)
    return y * len(log)


@contextlib.contextmanager
def own_context(log: list[int]) -> Iterator[None]:
    try:
        yield
    finally:
        log.append(1)


@FAMILY.program(ONE, FREE)
def in_own_context(x: Tensor) -> Tensor:
    log: list[int] = []
    with own_context(log):
        y = positive(x, "x")
    return y * len(log)


@FAMILY.program(ONE, FREE)
def suppressed(x: Tensor) -> Tensor:
    y = x
    with contextlib.suppress(ValueError):
        y = positive(x, "x")
    return y + 1


@FAMILY.program(ONE, RAISES | FREE)
def while_handling(x: Tensor) -> Tensor:
    try:
        raise KeyError("first")
    except KeyError:
        y = positive(x, "x")
    return y


@FAMILY.program(ONE, SINK)
def after_a_try(x: Tensor) -> Tensor:
    try:
        y = x * {}["none"]
    except KeyError:
        y = x * 2
    if y.sum() < 0:
        raise ValueError("after")
    return y


@FAMILY.program(ONE, SINK, grad=True)
def returns_nothing(x: Tensor) -> None:
    if x.sum() < 0:
        raise ValueError("nothing else here")


@FAMILY.program(ONE, SINK)
def returns_its_input(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("identity")
    return x


@FAMILY.program(ONE, SINK, grad=True)
def returns_what_it_names(x: Tensor) -> tuple[Tensor, Tensor]:
    total, h = x.sum(), torch.relu(x)
    if total < 0:
        raise ValueError(f"{total} {h.sum()}")
    return total, h


@FAMILY.program(ONE, SINK)
def last_statement(x: Tensor) -> Tensor:
    y = x * 2
    if not (y.sum() < 0):
        return y
    raise ValueError(f"at the end {y.sum():.3f}")


@FAMILY.program(TWO, SINK, WHERE)
def returns_early_after(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("x")
    if y.sum() < 0:
        return x - y
    return x + y


@FAMILY.program(TWO, WHERE, SINK)
def returns_early_before(x: Tensor, y: Tensor) -> Tensor:
    if y.sum() < 0:
        return x - y
    if x.sum() < 0:
        raise ValueError("x")
    return x + y
