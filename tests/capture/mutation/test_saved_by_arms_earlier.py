"""Arms that write what an earlier graph of the function saved for a backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.capture.mutation.test_saved_by_arms import SIGNS, Program, outcome
from tests.capture.mutation.test_saved_by_arms_behind import (
    assert_kept,
    called_twice,
    stop,
    treatments,
)


def by_itself(x: Tensor, state: Tensor) -> Tensor:
    y = x * state
    stop()
    if x.sum() < 0:
        state.add_(1)
    return y


def behind_an_early_return(x: Tensor, state: Tensor) -> Tensor:
    y = x * state
    stop()
    if x.sum() > 0:
        return y
    state[0] = 1
    return y


def made_in_the_graph(x: Tensor, state: Tensor) -> Tensor:
    h = x * x
    y = h * h
    stop()
    if x.sum() < 0:
        h.detach()[0] = 1
    return y


def by_a_view(x: Tensor, state: Tensor) -> Tensor:
    head = state[:2]
    y = x * (x[:2] * head).sum()
    stop()
    if x.sum() < 0:
        state[2] = 1
    return y


def on_one_path(x: Tensor, state: Tensor) -> Tensor:
    y = x * state if torch.equal(x, -x.abs()) else x + x
    stop()
    if x.max() > 10:
        state.zero_()
    return y


def not_saved(x: Tensor, state: Tensor) -> Tensor:
    y = x + state
    stop()
    if x.sum() < 0:
        state.add_(1)
    return y


def of_a_copy(x: Tensor, state: Tensor) -> Tensor:
    y = x * state.clone()
    stop()
    if x.sum() < 0:
        state.add_(1)
    return y


def in_one_graph(x: Tensor, state: Tensor) -> Tensor:
    stop()
    if x.sum() < 0:
        state.add_(1)
    return x * 2


KEPT: list[Program] = [
    by_itself,
    behind_an_early_return,
    made_in_the_graph,
    by_a_view,
    on_one_path,
]
CAPTURED: list[Program] = [not_saved, of_a_copy, in_one_graph]


@pytest.mark.parametrize("program", KEPT)
def test_backward_fails_only_where_eagers_does(program: Program) -> None:
    assert_kept(called_twice(program))


@pytest.mark.parametrize("program", CAPTURED)
def test_what_no_graph_saved_may_be_written(program: Program) -> None:
    assert treatments(called_twice(program)) == ["where"]


def test_without_a_backward_the_branch_is_captured() -> None:
    assert treatments(called_twice(by_itself, train=False)) == ["where"]


@pytest.mark.parametrize("sign", SIGNS)
def test_arguments_that_share_memory(sign: float) -> None:
    def program(x: Tensor, other: Tensor) -> Tensor:
        y = x.sin()
        stop()
        if other.sum() < 0:
            other[0] = 1.0
        return y

    def run(function: Program) -> str | None:
        x = (torch.arange(1.0, 5.0) * sign).requires_grad_()
        try:
            function(x, x.detach()[1:]).sum().backward()
        except RuntimeError as error:
            return str(error).split("[")[0]
        return str(x.grad)

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    assert [run(compiled), run(compiled)] == [run(program), run(program)]


def test_a_graph_that_saves_may_be_compiled_later() -> None:
    """The graph with the write is there first: a guard has it compiled again."""
    compiled = torch.compile(on_one_path, backend="fusepass", options={"codegen": "eager"})
    assert outcome(compiled, 1.0) == outcome(on_one_path, 1.0)
    before = treatments(compiled)
    assert "where" in before
    assert outcome(compiled, -1.0) == outcome(on_one_path, -1.0)
    assert treatments(compiled).count("keep") > before.count("keep")


def unused_so_far(x: Tensor, given: Tensor, level: Tensor, whole: Tensor) -> Tensor:
    y = x * len(x[given])
    if not level:
        pass
    else:
        out = y
    return out + whole  # unbound for a level of 0, so the branch is kept


def test_what_is_used_behind_the_graph_is_no_input_of_it() -> None:
    x = torch.tensor([1.0, 0.25, -2.0], requires_grad=True)
    args = x > -9, torch.tensor(1.5), torch.tensor(6.0)
    compiled = torch.compile(unused_so_far, backend="fusepass", options={"codegen": "eager"})
    assert torch.equal(compiled(x, *args), unused_so_far(x, *args))
