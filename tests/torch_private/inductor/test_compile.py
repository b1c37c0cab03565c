"""Settings that follow from the control flow in a graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx

from fusepass.torch_private.inductor.compile import while_loop_config


class Halved(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.while_loop(lambda x: x.sum() > 1, lambda x: (x / 2,), (x,))


class InAnArm(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        halved = Halved()
        return torch.cond(x.sum() > 0, halved, lambda x: (x + 1,), (x,))


class NoLoop(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.cond(x.sum() > 0, lambda x: (x * 1,), lambda x: (x + 1,), (x,))


@pytest.mark.parametrize(
    ("program", "wanted"),
    [(Halved, {"triton.cudagraphs": False}), (InAnArm, {"triton.cudagraphs": False}), (NoLoop, {})],
)
def test_no_cuda_graph_around_a_while_loop(program: type, wanted: dict[str, bool]) -> None:
    graph = torch.export.export(program(), (torch.ones(4),)).graph_module
    assert isinstance(graph, fx.GraphModule)
    assert while_loop_config(graph) == wanted
