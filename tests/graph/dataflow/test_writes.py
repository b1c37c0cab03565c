"""What a complete graph writes, in the graphs it calls, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.writes import memory_written


def written(program: Callable[..., Any], *args: Tensor) -> list[bool]:
    """Whether each input of a program's graph is written, in the order of their use."""
    found: list[bool] = []

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        keys = memory_written(gm)
        inputs = gm.graph.find_nodes(op="placeholder")
        found.extend(not keys.isdisjoint(memories([node])) for node in inputs)
        return gm

    torch._dynamo.reset()
    torch.compile(program, backend=backend, fullgraph=True)(*args)
    return found


def through_a_view(x: Tensor, y: Tensor) -> Tensor:
    x[0].add_(y[0])
    return x + y


def nothing(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    z.add_(1)
    return z


def checkpointed(x: Tensor, y: Tensor) -> Tensor:
    return checkpoint(torch.add, x, y, use_reentrant=False) * 2  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("program", "expected"),
    [(through_a_view, [True, False]), (nothing, [False, False]), (checkpointed, [False, False])],
)
def test_inputs_written(program: Callable[..., Any], expected: list[bool]) -> None:
    assert written(program, torch.ones(3, 2), torch.ones(3, 2)) == expected


def test_a_graph_that_is_called_and_writes_is_taken_to_write_all() -> None:
    norm = nn.BatchNorm1d(2)
    parts = nn.ModuleList([norm])

    def program(x: Tensor) -> Tensor:
        return checkpoint(parts[0], x, use_reentrant=False)  # type: ignore[no-any-return]

    assert all(written(program, torch.ones(3, 2)))
