"""Values that many branches decide: what is traced and written grows by rounds, not by their ways.

Two to the power of the rounds would be more than a million ways: such a test would not end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.torch_private.dynamo.phi import choose_among

ROUNDS = 20


def counted(x: Tensor) -> Any:
    used = 0
    for k in range(ROUNDS):
        if x[k] > 0:
            used += 1
    return x + 1, used


def counted_for_tensors(x: Tensor) -> Any:
    used = 0
    for k in range(ROUNDS):
        if x[k] > 0:
            used += 1
    return x + used, used


def halved(x: Tensor) -> Any:
    step = 1.0
    for k in range(ROUNDS):
        if x[k] > 0:
            step = step * 0.5
    return x * step


def printed(x: Tensor) -> Any:
    used = 0
    for k in range(ROUNDS):
        if x[k] > 0:
            used += 1
    print(f"used {used}")  # noqa: T201
    return x + 1


def spelled(x: Tensor) -> Any:
    mode = "a"
    for k in range(ROUNDS):
        if x[k] > 0:
            mode = mode + "b" if len(mode) < 4 else "c"
    return x * 2 if mode == "c" else x + 0, mode


def compared(x: Tensor) -> Any:
    more = less = 0
    for k in range(8):
        if x[k] > 0:
            more += 1
        else:
            less += 1
    return x * (2 if more > less else 3), more - less


@pytest.mark.parametrize(
    "program", [counted, counted_for_tensors, halved, printed, spelled, compared]
)
def test_equal_to_eager(
    program: Callable[[Tensor], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fusepass.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(ROUNDS)
        expected, said = program(x), capsys.readouterr().out
        assert str(compiled(x)) == str(expected)
        assert capsys.readouterr().out == said


def test_a_counter_that_only_leaves_the_frame_is_in_the_graph() -> None:
    fusepass.reset()
    compiled = torch.compile(counted, backend="fusepass", options={"codegen": "eager"})
    compiled(torch.randn(ROUNDS))
    report = fusepass.last_report(compiled)
    assert len(report.operations) == 1
    assert report.graph_breaks == ()


def test_steps_lead_from_the_last_to_one_of_the_values() -> None:
    steps = ((0, 0, 1), (1, ~0, 2))  # the first of the last two, or the last value
    for first, second, found in ((True, True, "a"), (False, True, "b"), (True, False, "c")):
        assert choose_among(steps, (first, second), ("a", "b", "c")) == found
