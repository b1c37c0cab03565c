"""Attributes that are set and set back before a raise: eager's state, however the call ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass


class State:
    """What code notes while it runs."""

    def __init__(self) -> None:
        self.value: Any = None
        self.on = False


class Checked(State):
    """The same, with an attribute that does more."""

    @property
    def twice(self) -> Any:
        return self.value

    @twice.setter
    def twice(self, value: Any) -> None:
        self.value = value


STATE, CHECKED = State(), Checked()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    for state in (STATE, CHECKED):
        state.value, state.on = None, False


def set_back(x: Tensor) -> Tensor:
    STATE.value, STATE.on = {}, True
    try:
        y = x * 2
    finally:
        STATE.value, STATE.on = None, False
    if (x > 3).any():
        raise ValueError(f"too large: {x.shape}")
    return y + 1


def left_set(x: Tensor) -> Tensor:
    STATE.on = True
    if (x > 3).any():
        raise ValueError("too large")
    return x + 1


def a_number(x: Tensor) -> Tensor:
    STATE.value = 1
    STATE.value = 0
    if (x > 3).any():
        raise ValueError("too large")
    return x + 1


def through_a_property(x: Tensor) -> Tensor:
    CHECKED.twice = 5
    CHECKED.twice = None
    if (x > 3).any():
        raise ValueError("too large")
    return x + 1


def outcome(program: Callable[..., Any], x: Tensor, before: Any) -> Any:
    for state in (STATE, CHECKED):
        state.value, state.on = before, False
    try:
        result = program(x).tolist()
    except ValueError as error:
        result = str(error)
    return result, STATE.value, STATE.on, CHECKED.value


@pytest.mark.parametrize("program", [set_back, left_set, a_number, through_a_property])
def test_state_after_both_outcomes(program: Callable[..., Any]) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for before in (None, None, 5, None, 6):
        for number in (1.0, 4.0):
            x = torch.full((3,), number)
            assert outcome(program, x, before) == outcome(compiled, x, before)


@pytest.mark.parametrize(("program", "breaks"), [(set_back, 0), (left_set, 1), (a_number, 1)])
def test_captured_where_set_back(program: Callable[..., Any], breaks: int) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    compiled(torch.ones(3))
    assert len(fusepass.last_report(compiled).graph_breaks) == breaks
