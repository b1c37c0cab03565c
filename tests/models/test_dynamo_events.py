"""Graph breaks, graphs and compiles are counted as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.models.dynamo_events import Events, counted


def _seen(program: Callable[[Tensor], Tensor], *lengths: int) -> Events:
    events = Events()
    torch._dynamo.reset()
    with counted(events):
        compiled = torch.compile(program, backend=events.plain)
        for length in lengths:
            compiled(torch.ones(length))
    return events


def test_a_whole_graph_has_no_break_and_compiles_again_for_another_length() -> None:
    events = _seen(lambda x: x.sin() + 1, 4, 4, 5, 6)
    assert (events.breaks, events.left, events.compiles, events.entered) == ({}, set(), 2, 4)


def test_a_break_is_one_line_and_two_graphs() -> None:
    def program(x: Tensor) -> Tensor:
        x = x + 1
        if x.sum() > 0:
            x = x * 2
        return x - 1

    events = _seen(program, 4)
    assert [places[-1][1] - program.__code__.co_firstlineno for places in events.breaks] == [2]
    assert (len(events.left), events.compiles, events.entered) == (0, 2, 2)


def test_a_break_in_a_loop_leaves_the_function_to_eager_mode() -> None:
    def program(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + 1
            if x.sum() > 0:
                x = x * 2
        return x

    events = _seen(program, 4)
    assert [name for _, _, name in events.left] == ["program"]
    assert events.compiles == events.entered == 0
    assert len(events.breaks) == 1
