"""Copies the program makes, or a backward needs, hold what they did whatever is written later.

Inductor takes them for nothing to do. Where eager code stands between a copy and the write, as it
does around a print that breaks the graph, Inductor is right.
"""

# ruff: noqa: T201 - the programs print

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.testing.compare import assert_same
from tests.capture.support.written import assert_same_text

COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": torch.clone,
    "view of one": lambda x: x.clone()[1:],
    "one of a view": lambda x: x[1:].clone(),
    "cat": lambda x: torch.cat([x]),
    "to": lambda x: x.to(x.dtype, copy=True),
    "repeat": lambda x: x.repeat(1),
    "pow": lambda x: x.pow(1),
    "filled": lambda x: torch.empty_like(x).copy_(x),
    "zeros": lambda x: x + torch.zeros(3),
}


def inputs() -> tuple[Tensor, Tensor]:
    x = torch.arange(3.0) + 1
    return x, x[1:]


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("shared", [False, True])
def test_shown_raised_and_returned(copy: str, shared: bool) -> None:
    make = COPIES[copy]

    def stores(x: Tensor, v: Tensor, number: float) -> None:
        (x if shared else x[0]).add_(1)
        (v if shared else x[1:]).fill_(number)

    def program(x: Tensor, v: Tensor) -> Any:
        stores(x, v, 3.0)
        y = make(x)
        print(y, y.sum().item())
        x[1:].zero_()
        z = make(x)
        if z.sum() < 1:
            raise ValueError(f"small {y} {z}")
        stores(x, v, 5.0)
        return y, z, x.sum()

    compiled = assert_same_text(program, inputs, options={"codegen": "inductor"})
    assert not fusepass.last_report(compiled).graph_breaks


def test_outputs_do_not_alias_inputs() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        x[0].add_(1)
        y = x.clone()
        x[1:].zero_()
        return y, x.clone()

    compiled = torch.compile(program, backend="fusepass")
    x, given = torch.ones(3), torch.ones(3)
    expected, found = program(x), compiled(given)
    given.add_(7)
    x.add_(7)
    assert_same(expected, found, "results")
    assert_same(x, given, "input")


def test_a_clone_saved_for_backward_survives_later_writes() -> None:
    def program(state: Tensor, w: Tensor) -> Tensor:
        state[0].add_(1)
        held = state.clone()
        state[1:].zero_()
        return (held * w).sum()

    compiled = torch.compile(program, backend="fusepass")
    grads = []
    for target in (program, compiled):
        w = torch.ones(3, requires_grad=True)
        target(torch.arange(3.0), w).backward()
        grads.append(w.grad)
    assert_same(grads[0], grads[1], "gradient")


def test_graphs_without_writes_to_inputs_are_left() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.zeros(3)
        y[1:] = x[1:]
        return y, y.clone()

    compiled = torch.compile(program, backend="fusepass")
    assert_same(program(torch.ones(3)), compiled(torch.ones(3)), "results")
