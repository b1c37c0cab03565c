"""Branches whose arms save for a backward what the program writes later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass import last_report

Program = Callable[[Tensor, Tensor], Tensor]
SIGNS = (1.0, -1.0)


def by_itself(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    state[0] = 1.0
    return y


def by_a_view(x: Tensor, state: Tensor) -> Tensor:
    part = state[:2]
    y = x + x if x.sum() > 0 else x + (x[:2] * part).sum()
    state[2] = 1.0
    return y


def in_the_other_arm(x: Tensor, state: Tensor) -> Tensor:
    y = x * state if x.sum() > 0 else x + state
    state.zero_()
    return y


def in_both_arms(x: Tensor, state: Tensor) -> Tensor:
    y = x * state if x.sum() > 0 else x / state
    state.zero_()
    return y


def behind_gates(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x / state
    state[0] = 1.0
    return y


def in_an_inner_arm(x: Tensor, state: Tensor) -> Tensor:
    y = x + 2
    if x.sum() > 0:
        y = x + x if x.sum() > 99 else x * state
    state[0] = 1.0
    return y


def in_the_arm_itself(x: Tensor, state: Tensor) -> Tensor:
    if x.sum() > 0:
        held = state * 2
        y = x * held
        held.zero_()
    else:
        y = x + 1
    return y


def in_the_next_round(x: Tensor, state: Tensor) -> Tensor:
    y = x
    for _ in range(2):
        y = y + x if y.sum() > 0 else y * state
        state.add_(1)
    return y


def in_a_later_arm(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    if state.sum() > 0:
        state.mul_(2)
    return y


def in_a_later_arm_not_taken(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    if state.sum() > 99:
        state.mul_(2)
    return y


def in_an_inner_arm_later(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    if state.sum() < 99:
        if state.sum() > 99:
            state.mul_(2)
        y = y + 1
    return y


def in_a_function(x: Tensor, state: Tensor) -> Tensor:
    y = _chosen(x, state)
    state[0] = 1.0
    return y


def in_a_function_and_a_later_arm(x: Tensor, state: Tensor) -> Tensor:
    y = _chosen(x, state)
    if state.sum() > 0:
        state.mul_(2)
    return y


def _chosen(x: Tensor, state: Tensor) -> Tensor:
    return x + x if x.sum() > 0 else x * state


def not_saved(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x + state
    state[0] = 1.0
    return y


def written_before(x: Tensor, state: Tensor) -> Tensor:
    state[0] = 1.0
    return x + x if x.sum() > 0 else x * state


def other_memory(x: Tensor, state: Tensor) -> Tensor:
    other = state + 1
    y = x + x if x.sum() > 0 else x * state
    other[0] = 1.0
    return y + other


def without_gradients(x: Tensor, state: Tensor) -> Tensor:
    with torch.no_grad():
        y = x + x if x.sum() > 0 else x * state
        state[0] = 1.0
    return x + y


KEPT: list[Program] = [
    by_itself,
    by_a_view,
    in_the_other_arm,
    in_both_arms,
    behind_gates,
    in_an_inner_arm,
    in_the_arm_itself,
    in_the_next_round,
    in_a_later_arm,
    in_a_later_arm_not_taken,
    in_an_inner_arm_later,
    in_a_function,
    in_a_function_and_a_later_arm,
]
CAPTURED: list[Program] = [not_saved, written_before, other_memory, without_gradients]


def outcome(program: Any, sign: float, *, train: bool = True) -> list[str]:
    x = (torch.tensor([1.0, 2.0, 3.0]) * sign).requires_grad_(train)
    state = torch.tensor([1.0, 2.0, 3.0])
    result = program(x, state)
    said = [str(result.detach()), str(state)]
    if train:
        try:
            result.sum().backward()
        except RuntimeError as error:
            said.append(str(error).split("[")[0])
        said.append(str(x.grad))
    return said


@pytest.mark.parametrize("program", KEPT)
def test_backward_fails_only_where_eagers_does(program: Program) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for sign in (*SIGNS, *SIGNS):
        assert outcome(compiled, sign) == outcome(program, sign)
    decisions = [d for d in last_report(compiled).decisions if d.rule == "branch"]
    assert {d.treatment for d in decisions} == {"keep"}
    assert any("although eager did not take that arm" in d.reason for d in decisions)


@pytest.mark.parametrize("program", CAPTURED)
def test_tensors_that_no_arm_saves_may_be_written(program: Program) -> None:
    compiled = torch.compile(
        program, backend="fusepass", fullgraph=True, options={"codegen": "eager"}
    )
    for sign in SIGNS:
        assert outcome(compiled, sign) == outcome(program, sign)


@pytest.mark.parametrize("program", KEPT)
def test_without_a_backward_the_branch_is_captured(program: Program) -> None:
    compiled = torch.compile(
        program, backend="fusepass", fullgraph=True, options={"codegen": "eager"}
    )
    for sign in SIGNS:
        assert outcome(compiled, sign, train=False) == outcome(program, sign, train=False)


def test_generated_code_trains_where_eager_does_not_take_the_arm() -> None:
    compiled = torch.compile(by_itself, backend="fusepass")
    assert outcome(compiled, 1.0) == outcome(by_itself, 1.0)
