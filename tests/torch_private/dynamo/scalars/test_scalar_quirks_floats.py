"""Python floats that a frame changes: their values are eager's, call for call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass


class State:
    def __init__(self) -> None:
        self.rate = 0.5


def behind_a_branch(x: Tensor, state: State) -> Any:
    state.rate += 0.25
    if x.sum() > 0:
        return x * state.rate
    return x - state.rate


def printed(x: Tensor, state: State) -> Any:
    state.rate = (state.rate * 0.9 + 1) / 3
    print("rate", state.rate, x.sum().item())  # noqa: T201
    return x * state.rate, state.rate - 2


def without_a_branch(x: Tensor, state: State) -> Any:
    state.rate = 2 - state.rate * 0.75
    return x * state.rate, -state.rate


def divides(x: Tensor, state: State) -> Any:
    if x.sum() > 0:
        x = x * 2
    state.rate = 1 / (state.rate + 1)
    return x * state.rate


@pytest.mark.parametrize("codegen", ["inductor", "eager"])
@pytest.mark.parametrize("program", [behind_a_branch, printed, without_a_branch, divides])
def test_values_over_several_calls(
    program: Callable[[Tensor, State], Any],
    codegen: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fusepass.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    ours, theirs = State(), State()
    for call in range(5):
        x = torch.full((3,), (-1.0) ** call)
        got, got_text = compiled(x, ours), capsys.readouterr().out
        wanted, wanted_text = program(x, theirs), capsys.readouterr().out
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0)
        assert (got_text, ours.rate) == (wanted_text, theirs.rate)


def test_a_division_by_zero_raises() -> None:
    compiled = torch.compile(divides, backend="fusepass")
    state = State()
    for rate in (0.5, 0.25, 3.0):
        state.rate = rate
        compiled(torch.ones(3), state)
    state.rate = -1.0
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(3), state)
