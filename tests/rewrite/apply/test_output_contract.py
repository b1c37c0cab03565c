"""A replacement's results share memory as those they stand for, or it is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

X = torch.randn(4, 8)


def reason(rule: fusepass.Rule, program: Callable[..., Any], *inputs: Tensor) -> str:
    """Reason code of the rule's first decision; results, and what they share, must be eager's."""
    fusepass.reset()  # some are compiled under one rule and then another
    codegen = "eager" if rule.place == "before" else "eager-decomposed"
    with fusepass.rules(rule):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
        with torch.no_grad():
            ours, eager = compiled(*inputs), program(*inputs)
            torch.testing.assert_close(ours, eager)
            if isinstance(ours, tuple):
                ours[0].add_(1)
                eager[0].add_(1)
                torch.testing.assert_close(ours, eager)
        decisions = fusepass.last_report(compiled).decisions
    return next((d.reason_code.value for d in decisions if d.rule == rule.name), "nothing")


def once(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.relu()
    return y, y


def one_written(x: Tensor) -> Tensor:
    a = torch.relu(x)
    b = torch.clamp(x, min=0) + 0
    b.add_(1)
    return a


def both_handed_out(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(x), torch.clamp(x, min=0) + 0


def a_view_written(x: Tensor) -> Tensor:
    a = x.sin()
    b = a.t()
    b.mul_(2)
    return a


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    a = x.sin()
    return a, a.t()


@pytest.mark.parametrize("program", [one_written, both_handed_out])
def test_results_that_became_one(program: Callable[..., Any]) -> None:
    rule = fusepass.Rule("test_two", both_handed_out, once, (X,))
    assert reason(rule, program, X) == "alias"


def test_results_that_become_one_after_autograd() -> None:
    rule = fusepass.Rule(
        "test_two",
        lambda x: (x.sin() * 2, x.sin() + 1),
        lambda x: (lambda y: (y, y))(x.sin()),
        (X,),
        place="after",
    )
    assert reason(rule, lambda x: (x.sin() * 2, x.sin() + 1), X) == "alias"


@pytest.mark.parametrize("program", [a_view_written, turned])
def test_results_that_are_no_views_of_one_another_any_more(program: Callable[..., Any]) -> None:
    rule = fusepass.Rule("test_view", turned, lambda x: (x.sin(), x.sin().t()), (X,))
    assert reason(rule, program, X) == "alias"
    as_before = fusepass.Rule(
        "test_view", turned, lambda x: (lambda a: (a, a.t()))(x.sin() + 0), (X,)
    )
    assert reason(as_before, program, X) == "proved"


def test_a_result_computed_in_place_of_another_that_was_read_before() -> None:
    """One memory at two times, and two values."""
    rule = fusepass.Rule(
        "test_times",
        lambda x: (x.sin(), x.sin() * 2),
        lambda x: (torch.sin(x), 2 * torch.sin(x)),
        (X,),
    )
    shared = fusepass.Rule(
        "test_times",
        lambda x: (lambda y: (y, y * 2))(x.sin()),
        lambda x: (torch.sin(x), 2 * torch.sin(x)),
        (X,),
    )

    def read_before(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        total = y.sum(0)
        return total, y.mul_(2)

    def read_after(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y, y.mul_(2)

    assert reason(shared, read_before, X) == "proved"
    assert reason(rule, read_before, X) != "proved"
    for one in (shared, rule):
        reason(one, read_after, X)


@torch.library.custom_op("fusepass_test_fit::exp", mutates_args=())
def exp(x: Tensor) -> Tensor:
    return torch.exp(x)


@exp.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


exp.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def scaled(x: Tensor) -> Tensor:
    return torch.log(x).mul(3.0).mul(0.5)


def then_written(x: Tensor) -> Tensor:
    y = scaled(x)
    y.add_(1)
    return y * 2


@pytest.mark.parametrize(
    ("replacement", "code"),
    [
        (lambda x: torch.exp(torch.log(1.5 * x.log())), "alias"),
        (lambda x: torch.exp(torch.log(1.5 * x.log())).view_as(x), "alias"),
        (lambda x: exp(torch.log(1.5 * x.log())), "alias"),
        (lambda x: torch.exp(torch.log(1.5 * x.log())) + 0, "proved"),
        (lambda x: 1.5 * x.log(), "proved"),
    ],
)
def test_a_result_that_the_backward_reads_is_not_written(
    replacement: Callable[[Tensor], Tensor], code: str
) -> None:
    fusepass.reset()
    rule = fusepass.Rule("test_saved", scaled, replacement, (X.abs() + 2,))
    x, y = ((X.abs() + 2).requires_grad_() for _ in range(2))
    with fusepass.rules(rule):
        compiled = torch.compile(then_written, backend="fusepass", options={"codegen": "eager"})
        compiled(x).sum().backward()
        then_written(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    decisions = fusepass.last_report(compiled).decisions
    assert next(d.reason_code.value for d in decisions if d.rule == rule.name) == code
