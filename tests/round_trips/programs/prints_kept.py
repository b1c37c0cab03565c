"""Text that cannot wait until the graph is done: left where it stands."""

from __future__ import annotations

import builtins
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..inputs import calls, floats, normal
from ..program import Calls, Family
from .prints import LOG, signs

FAMILY = Family("prints_kept")
HELD: list[Any] = []


def held(_: object) -> list[Any]:
    found = list(HELD)
    HELD.clear()
    return found


@FAMILY.program(floats(3, 4), state=held)
def before_a_list_changes(x: Tensor) -> Tensor:
    print("before", x.sum())  # expect: print late after_graph
    HELD.append("after the print")
    return x * 2


class Speaks:
    """A Python object that says how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __repr__(self) -> str:
        self.asked += 1
        return f"<asked {self.asked}>"


@FAMILY.program(floats(3, 4), state=lambda module: module.one.asked)
class PrintsAnObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Speaks()

    def forward(self, x: Tensor) -> Tensor:
        print(self.one, x.sum())  # expect: print keep side_effect|untraceable|python_value
        y = x * 2
        print(self.one, y.sum())  # expect: print keep side_effect|untraceable|python_value
        return y


class Loud:
    """Attributes that print when they are set."""

    def __setattr__(self, name: str, value: Any) -> None:
        print("setting", name)  # expect: any
        super().__setattr__(name, value)


@FAMILY.program(floats(3, 4), helpers=(Loud,))
class SetsLoudly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loud = Loud()

    def forward(self, x: Tensor) -> Tensor:
        print("before", x.sum())  # expect: any
        self.loud.level = 3
        print("after", x.max())  # expect: any
        return x * 2


@FAMILY.program(floats(3, 4), state=held)
def into_a_buffer(x: Tensor) -> Tensor:
    text = io.StringIO()
    print("sum", x.sum(), file=text)  # expect: print keep side_effect
    HELD.append(text.getvalue())
    return x * 2


@FAMILY.program(floats(3, 4))
def to_stderr(x: Tensor) -> Tensor:
    print("one", x.sum())  # expect: print late after_graph
    print("two", x.max(), file=sys.stderr)  # expect: print late after_graph
    print("three", x.min())  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4))
def writes_to_stdout(x: Tensor) -> Tensor:
    print("one", x.sum())  # expect: any
    sys.stdout.write(f"two {x.max()}\n")  # expect: print keep side_effect|python_value
    print("three")  # expect: any
    return x * 2


def shouted(*values: Any, **rest: Any) -> None:
    texts = [str(value).upper() for value in values]  # expect: any
    builtins.__dict__["print"](*texts, **rest)


@FAMILY.program(floats(3, 4), helpers=(shouted,))
def own_print(x: Tensor) -> Tensor:
    print = shouted  # noqa: A001
    print("own", x.sum())  # expect: any
    return x * 2


@FAMILY.program(floats(3, 4))
def in_a_generator(x: Tensor) -> Tensor:
    def parts() -> Iterator[Tensor]:
        print("begin", x.sum())  # expect: any
        yield x
        print("middle", x.max())  # expect: any
        yield x * 2
        print("end")  # expect: any

    total = torch.zeros_like(x)
    for part in parts():
        print("part", part.mean())  # expect: any
        total = total + part
    return total


@FAMILY.program(floats(3, 4), state=held, breaks=True)
def around_a_foreign_call(x: Tensor) -> Tensor:
    print("one", x.sum())  # expect: print late after_graph
    foreign("two", x.max().item())  # expect: item late after_graph
    print("three", x.min())  # expect: print late after_graph
    return x * 2


@torch._dynamo.disable
def foreign(*values: Any) -> None:
    print("foreign", *values)
    HELD.append(len(values))


@FAMILY.program(floats(3, 4), breaks=True)
def around_a_break(x: Tensor) -> Tensor:
    print("before", x.sum())  # expect: print late after_graph
    torch._dynamo.graph_break()
    y = x * 2
    print("behind", y.sum())  # expect: print late after_graph
    return y


@FAMILY.program(calls(lambda: [(normal(3, 4), torch.tensor(n)) for n in (1, 3, 2)]))
def around_a_kept_number(x: Tensor, n: Tensor) -> Tensor:
    print("before", x.sum())  # expect: print late after_graph
    y = x[: n.item()]  # expect: item keep size
    print("behind", y.sum(), y.shape)  # expect: print late after_graph
    return y * 2


@FAMILY.program(signs)
def in_a_try(x: Tensor) -> Tensor:
    try:
        print("trying", x.sum())  # expect: any
        if x.sum() < 0:
            raise ValueError(f"negative {x.max()}")
        print("fine")  # expect: any
    except ValueError as error:
        print("caught", error)  # expect: any
        LOG.exception("logged")  # expect: any
        x = -x
    finally:
        print("finally", x.sum())  # expect: any
    return x * 2


@FAMILY.program(floats(3, 4))
def number_that_decides(x: Tensor) -> Tensor:
    if x.sum().item() > 0:
        print("positive", x.sum())  # expect: any
        HELD.clear()
    return x * 2


@FAMILY.program(floats(3, 4), warned="error")
def warning_that_raises(x: Tensor) -> Tensor:
    print("before", x.sum())  # expect: print late after_graph
    warnings.warn(f"sum {x.sum()}")  # expect: print keep raises
    print("never")  # expect: any
    return x * 2


@FAMILY.program(floats(3, 4), warned="error", state=held)
def warning_that_is_caught(x: Tensor) -> Tensor:
    try:
        warnings.warn("a warning")  # expect: print keep raises
    except UserWarning as error:
        print("caught", error)  # expect: any
        HELD.append(str(error))
    return x * 2


@FAMILY.program(floats(3, 4))
def warning_caught_by_a_scope(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn(f"unseen {x.sum()}")  # expect: any
    warnings.warn(f"seen {x.sum()}")  # expect: any
    return x * 2


@FAMILY.program(floats(3, 4), state=held)
def warnings_recorded(x: Tensor) -> Tensor:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(f"kept {x.sum()}")  # expect: any
    HELD.append([str(one.message) for one in caught])
    return x * 2


@FAMILY.program(floats(3, 4), options={"rules": {"print": False}})
def switched_off(x: Tensor) -> Tensor:
    y = x * 2
    print(y)  # expect: print keep rule_off|forced
    return y + 1


@FAMILY.program(floats(3, 4))
def bad_format(x: Tensor) -> Tensor:
    print("before", x.sum())  # expect: print late after_graph
    print(f"{x:.3f}")  # expect: print keep partial_op
    return x * 2


@FAMILY.program(floats(3, 4))
def wrong_arguments(x: Tensor) -> Tensor:
    print("before", x.sum())  # expect: print late after_graph
    print(x, sep=3)  # expect: print keep partial_op
    return x * 2


@FAMILY.program(floats(3, 4), breaks=True)
def asks_the_logger(x: Tensor) -> Tensor:
    if LOG.isEnabledFor(logging.DEBUG):
        LOG.debug("never %s", x)
    LOG.log(logging.INFO, "sum %s", x.sum())  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4))
def logs_with_more(x: Tensor) -> Tensor:
    LOG.info("sum %(sum)s", {"sum": x.sum()})  # expect: print late after_graph
    LOG.info("max", extra={"most": 3})  # expect: print keep side_effect
    LOG.info(x.sum())  # expect: print late after_graph
    return x * 2


class Refuses(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        HELD.append(record.levelname)
        return "drop" not in record.getMessage()


FILTERED = logging.getLogger("table.filtered")
FILTERED.setLevel(logging.INFO)
FILTERED.addFilter(Refuses())


@FAMILY.program(floats(3, 4), state=held)
def logs_through_a_filter(x: Tensor) -> Tensor:
    FILTERED.info("drop %s", x.sum())  # expect: print keep side_effect
    HELD.append("between")
    FILTERED.info("keep %s", x.sum())  # expect: print keep side_effect
    return x * 2


@FAMILY.program(floats(3, 4))
def print_options(x: Tensor) -> Tensor:
    print(x)  # expect: print late after_graph
    torch.set_printoptions(precision=2)
    print(x)  # expect: print keep side_effect
    torch.set_printoptions(profile="default")
    return x * 2


@FAMILY.program(calls(lambda: [(normal(3, 4), normal(3, 4))]), breaks=True)
def tensor_changed_by_the_caller(x: Tensor, y: Tensor) -> Tensor:
    print(x)  # expect: print late after_graph
    x.set_(y)
    print(x)  # expect: print late after_graph
    return x * 2


def mixed() -> Calls:
    return [(normal(3, 4), [normal(2), normal(2)]), (normal(3, 4), [normal(2)])]


@FAMILY.program(mixed)
def argument_list_changed(x: Tensor, parts: list[Tensor]) -> Tensor:
    print(parts)  # expect: print late after_graph
    parts.append(x.sum(0)[:2])
    print(parts)  # expect: print late after_graph
    parts.clear()
    print(parts, x.sum())  # expect: print late after_graph
    return x * 2


@FAMILY.program(mixed)
def print_held_as_a_value(x: Tensor, parts: list[Tensor]) -> Tensor:
    say = print
    say("said", x.sum())  # expect: print late after_graph
    for part in map(print, parts):  # expect: print late after_graph
        x = x * (2 if part is None else 3)
    return x


@FAMILY.program(floats(3, 4), breaks=True)
def asks_for_a_gradient(x: Tensor) -> Tensor:
    y = x.detach().clone().requires_grad_()
    z = (y * y).sum()
    z.backward()
    print("gradient", y.grad)  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4), state=held)
def between_two_side_effects(x: Tensor) -> Tensor:
    HELD.append(1)
    print("held", len(HELD), x.sum())  # expect: print late after_graph
    HELD.append(2)
    print("held", len(HELD), HELD)  # expect: print late after_graph
    return x * 2


class Reports(nn.Module):
    """Prints in a hook."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


@FAMILY.program(floats(3, 4), grad=True)
class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Reports()
        self.inner.register_forward_hook(self.hook)

    def hook(self, module: Any, args: Any, out: Tensor) -> None:
        print("hook", out.sum().detach())  # expect: print late after_graph

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x) + 1
        print("outside", x.sum().detach())  # expect: print late after_graph
        return x


@FAMILY.program(floats(3, 4), grad=True)
def tensor_hook(x: Tensor) -> Tensor:
    y = x * 2
    if y.requires_grad:

        def say(g: Tensor) -> None:
            print("gradient", g)  # expect: none; grad: print keep untraceable or none

        y.register_hook(say)
    print("y", y.detach())  # expect: print late after_graph
    return y + 1


@FAMILY.program(
    calls(lambda: [(normal(3, 4), torch.tensor([i])) for i in (0, 9)]),
    state=held,
    dynamo=True,
    device="cpu",
)
def raises_between(x: Tensor, i: Tensor) -> Tensor:
    print("one", x.sum())  # expect: any
    HELD.append("noted")
    y = x[i]
    print("two", y.sum())  # expect: any
    HELD.append("noted too")
    return y
