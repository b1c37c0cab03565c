"""What is recorded of a rule's function: everything that counts, or the rule is turned down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass import errors
from fusepass.report.decision import Decision

X = torch.randn(3, 4)


def twice(x: Tensor) -> Tensor:
    return x * 2


def no_gradient_inside(x: Tensor) -> Tensor:
    with torch.no_grad():
        half = x * 1
    return half + x


def inference_inside(x: Tensor) -> Tensor:
    with torch.inference_mode():
        half = x * 1
    return half + x


def enabled(x: Tensor) -> Tensor:
    with torch.enable_grad():
        return x + x


def decided(
    codegen: str = "eager", place: Any = "before", program: Any = None, **sides: Any
) -> list[Decision]:
    functions = {"pattern": twice, "replacement": twice} | sides
    rule = fusepass.Rule("traced", example=(X,), place=place, **functions)
    program = functions["pattern"] if program is None else program
    with fusepass.rules(rule):
        torch._dynamo.reset()
        compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
        x = torch.rand(5, 4, requires_grad=True)
        torch.testing.assert_close(compiled(x), program(x))
        report = fusepass.last_report(compiled)
    return [d for d in report.decisions if d.rule == "traced"]


@pytest.mark.parametrize("wrong", [no_gradient_inside, inference_inside])
@pytest.mark.parametrize("side", ["pattern", "replacement"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_rule_that_computes_without_gradients(
    wrong: Callable[[Tensor], Tensor], side: str, grad: bool
) -> None:
    """Recorded, it would have the gradients that it says are not to be."""
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(errors.RuleError, match=r"gradients switched off.*detach"),
    ):
        decided(**{side: wrong})


def test_gradients_may_be_switched_where_none_are() -> None:
    decided("eager-decomposed", "after", twice, replacement=no_gradient_inside)
    (found,) = decided(replacement=enabled)
    assert found.outcome == "applied"


POWERS: dict[str, Callable[[Tensor], Tensor]] = {
    "of a number": lambda x: (x**3).abs(),
    "of a tensor": lambda x: (x**x).abs(),
    "mean of squares": lambda x: (x.float() ** 2).mean(-1, keepdim=True),
    "number in front": lambda x: (2**x).abs(),
    "other operators": lambda x: (2 - x) + 1 / (x + 1),
}


@pytest.mark.parametrize("name", POWERS)
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_operators_in_a_replacement(name: str, codegen: str) -> None:
    """What the graph's code calls must be there: ``Tensor.__pow__`` is recorded as a method."""
    found, *_ = decided(codegen, replacement=POWERS[name], pattern=POWERS[name])
    assert found.outcome == "applied", found.reason
