"""Lines in arms of branches on a tensor, and around exceptions: written if eager gets there."""

from __future__ import annotations

# ruff: noqa: T201, B028
import logging
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusepass

from .support.written import assert_kept, assert_late, assert_same_text, treatments

logger = logging.getLogger("fusepass_tests.arms")
logger.setLevel(logging.INFO)


def values() -> Tensor:
    return torch.arange(-4.0, 8.0).reshape(3, 4) / 4


def positive() -> tuple[Tensor]:
    return (values(),)


def negative() -> tuple[Tensor]:
    return (-values(),)


def graded() -> tuple[Tensor]:
    return (values().requires_grad_(),)


def graded_negative() -> tuple[Tensor]:
    return ((-values()).requires_grad_(),)


def with_nan() -> tuple[Tensor]:
    x = values()
    x[1, 2] = float("nan")
    return (x,)


ALL = (positive, negative, with_nan, graded, graded_negative)


def guard_that_prints(x: Tensor) -> Tensor:
    h = x * 2
    if torch.isnan(h).any():
        print("nan in", h, h.sum().item(), f"{h.max():.3f}")
    return h + 1


def guard_that_warns(x: Tensor) -> Tensor:
    if x.sum() > 0:
        warnings.warn(f"sum {x.sum().item():.3f} is positive", RuntimeWarning)
    return x.exp()


def guard_that_logs(x: Tensor) -> Tensor:
    h = x - 1
    if h.max() > 0.5:
        logger.warning("max %s of %s", h.max(), h.shape)
        logger.debug("not %s", h)
    return h


def both_arms(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("positive", x.sum())
        x = x * 2
    else:
        print("negative")
        x = x - 1
        print("now", x)
    print("behind", x.mean())
    return x


def nested(x: Tensor) -> Tensor:
    if x.sum() > 0:
        if x.max() > 1:
            print("deep", x.max())
        else:
            print("not so deep")
        print("in between")
    elif x.min() < -1:
        print("elif", x.min())
    return x * 3


def early_return(x: Tensor) -> Tensor:
    print("begin")
    if x.sum() > 0:
        print("returns", x)
        return x * 2
    print("goes on", x)
    x = x + 1
    print("ends", x)
    return x


def written_later_in_the_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
        print("first", y)
        y.add_(1)
        print("then", y)
    else:
        y = x * 3
    print("end", y.detach())
    y.mul_(2)
    return y


def several_tests(x: Tensor) -> Tensor:
    if x.sum() > 0 and x.max() > 1.5:
        print("both", x.max())
    if x.sum() > 5 or x.min() < -1:
        print("either")
    if not x.isfinite().all():
        print("not finite")
    return x * 2


def constants_only(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("yes")
    return x + 1


def a_number_of_the_arm(x: Tensor) -> Tensor:
    total = x.sum().item()
    if total > 1:
        print("total", total, total * 2)
    return x / 2


def a_helper_that_prints(x: Tensor) -> Tensor:
    def note(value: Tensor, name: str) -> None:
        print(name, value.mean())

    if x.sum() > 0:
        note(x, "x")
        note(x * 2, "2x")
    return x + 1


PROGRAMS = [
    guard_that_prints,
    guard_that_warns,
    guard_that_logs,
    both_arms,
    nested,
    early_return,
    written_later_in_the_arm,
    several_tests,
    constants_only,
    a_number_of_the_arm,
    a_helper_that_prints,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_lines_in_arms(program: Any) -> None:
    compiled = assert_same_text(program, *ALL)
    report = fusepass.last_report(compiled)
    assert not report.graph_breaks, report.graph_breaks
    assert set(treatments(compiled)) == {("late", "after_graph")}


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if x.abs().max() > 0.5:
                print(f"layer {i}: {x.abs().max().item():.4f}", x)
                x = x.clamp(-0.5, 0.5)
        return x


def test_layers_are_one_graph() -> None:
    compiled = assert_same_text(Layers(), *ALL)
    assert not fusepass.last_report(compiled).graph_breaks


def prints_then_raises(x: Tensor) -> Tensor:
    print("begin", x.sum())
    if x.sum() > 0:
        print("about to raise", x)
        logger.error("sum is %s", x.sum())
        raise ValueError(f"sum {x.sum().item()}")
    print("went well", x.mean())
    if x.isnan().any():
        warnings.warn("nan")
        raise RuntimeError("nan")
    print("end")
    return x * 2


def raises_in_between(x: Tensor) -> Tensor:
    y = x.clone()
    print("one", y)
    y.mul_(2)
    if y.max() >= 3:
        raise AssertionError(f"max {y.max()}")
    print("two", y)
    x.add_(1)
    if y.isnan().any():
        raise AssertionError
    print("three", x)
    return y


@pytest.mark.parametrize("program", [prints_then_raises, raises_in_between])
def test_lines_around_exceptions(program: Any) -> None:
    compiled = assert_same_text(program, positive, negative, with_nan)
    assert_late(compiled)


def test_lookups_behind_a_check_and_a_line() -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        if index.max() >= len(x):
            print("too large", index)
            raise IndexError(f"{index.max()}")
        return x[index]

    makes = [lambda n=n: (values(), torch.tensor([0, n])) for n in (1, 2, 5)]
    assert_same_text(program, *makes)


@pytest.mark.parametrize("program", [guard_that_prints, both_arms, prints_then_raises])
@pytest.mark.parametrize("codegen", ["inductor", "eager-decomposed"])
def test_other_code_generators(program: Any, codegen: str) -> None:
    options = {"codegen": codegen}
    assert_late(assert_same_text(program, positive, negative, options=options, times=1))


# What is kept.


def test_an_arm_that_writes_what_is_older() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        if x.sum() > 0:
            y.add_(1)
            print(y)
        return y

    assert_same_text(program, positive, negative)


def test_an_arm_that_may_fail() -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        if index.max() < 3:
            x = x[index]
            print("found", x)
        else:
            x = x[:1] * 2
        return x

    makes = [lambda n=n: (values(), torch.tensor([n])) for n in (1, 5, 2)]
    assert_same_text(program, *makes)


def test_random_numbers_in_an_arm_that_prints() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            print(torch.rand(2), x.sum())
        return x + torch.rand(1)

    assert_same_text(program, positive, negative)


def test_behind_the_line_something_may_fail() -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        y = x * 2
        print("y", y.sum())
        z = y[index]
        print("z", z.sum())
        return z

    makes = [lambda n=n: (values(), torch.tensor([0, n])) for n in (1, 5, 2)]
    compiled = assert_same_text(program, *makes)
    assert_kept(compiled, "partial_op")


def test_given_lines_are_written_also_when_the_graph_fails() -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        print("looking up", index, "in", x)
        y = x[index]
        return F.relu(y)

    makes = [lambda n=n: (values(), torch.tensor([0, n])) for n in (1, 5, 2)]
    assert_late(assert_same_text(program, *makes), 1)


def test_large_tensors_are_not_kept_for_a_line() -> None:
    def program(x: Tensor) -> Tensor:
        y = torch.rand_like(x)
        print(y[0, 0], y)
        return y.sum() + x.sum()

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    compiled(torch.zeros(5000, 4000))
    assert_kept(compiled, "cost")
