"""An input is given other memory (``x.data = y``): with every code generator as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.testing.compare import assert_same

OPTIONS: list[dict[str, Any]] = [{"codegen": "eager"}, {"codegen": "eager-decomposed"}, {}]


def alone(x: Tensor, y: Tensor) -> Tensor:
    x.data = x * 2
    return x + y


def behind_a_write(x: Tensor, y: Tensor) -> Tensor:
    y.add_(1)
    x.data = y
    return x + 1


def new_memory_written(x: Tensor, y: Tensor) -> Tensor:
    x.data = y[:3]
    y.add_(1)
    return x * 1


def old_memory_written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    before = x.detach()
    x.data = y * 2
    before.add_(1)
    return x + 1, before


def another_shape(x: Tensor, y: Tensor) -> Tensor:
    x.data = y.view(1, 3)
    return x + y


def behind_a_branch(x: Tensor, y: Tensor) -> Tensor:
    if y.sum() > 0:
        y = y + 1
    x.data = y
    return x * 2


def in_an_arm(x: Tensor, y: Tensor) -> Tensor:
    if y.sum() > 0:
        x.data = y * 2
    return x + 1


AS_WRITTEN = [behind_a_write, new_memory_written, old_memory_written]


def run(program: Callable[..., Any], options: dict[str, Any], *, grad: bool) -> Any:
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="fusepass", options=options)
    for sign in (1, -1):
        found = []
        for called in (program, compiled):
            x, y = torch.arange(3.0).requires_grad_(grad), torch.arange(3.0) * sign + 1
            found.append((called(x, y), x, y))
        assert_same(*found, program.__name__)
    return compiled


@pytest.mark.parametrize("program", [alone, *AS_WRITTEN, another_shape, behind_a_branch, in_an_arm])
@pytest.mark.parametrize("options", OPTIONS[:2])
@pytest.mark.parametrize("grad", [False, True])
def test_data_assignment_equals_eager(
    program: Callable[..., Any], options: dict[str, Any], grad: bool
) -> None:
    run(program, options, grad=grad)


@pytest.mark.parametrize("program", AS_WRITTEN)
def test_what_autograd_does_not_follow_is_run_as_written(program: Callable[..., Any]) -> None:
    compiled = run(program, {}, grad=False)
    (handed,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == "codegen")
    assert handed.reason_code == "alias"
    assert handed.reason.startswith("the graph is run op by op as written: it gives an input")


def test_another_shape_under_inductor() -> None:
    """Before torch 2.15 Inductor takes the input to have had its new shape from the start."""
    run(another_shape, {}, grad=False)


def test_what_it_follows_goes_to_inductor() -> None:
    compiled = run(alone, {}, grad=False)
    handed = [d for d in fusepass.last_report(compiled).decisions if d.rule == "codegen"]
    assert {d.reason_code for d in handed} == {"no_rule"}
