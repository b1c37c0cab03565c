"""What a graph makes on the CPU and returns stays there under CUDA graphs, and nothing else pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusepass.torch_private.inductor.compile import host_output_config

WITH_GRAPHS = {"triton.cudagraphs": True}


def captured(program: Callable[..., Any], *shapes: tuple[str, tuple[int, ...]]) -> fx.GraphModule:
    """The program as a graph with example values; arguments by device and shape."""
    with FakeTensorMode():
        given = [torch.empty(shape, device=device) for device, shape in shapes]
        gm = make_fx(program)(*given)
    for node in gm.graph.nodes:
        node.meta["example_value"] = node.meta.get("val")
    return gm


def made_and_returned(x: Tensor) -> Any:
    steps = torch.arange(4) * 2
    return x * 2, steps


def made_of_a_scalar(x: Tensor, s: Tensor) -> Any:
    return x * 2, torch.ones(4) + s


def of_an_input(x: Tensor, y: Tensor) -> Any:
    return x * 2, torch.ones(4) + y


def read_back(x: Tensor) -> Any:
    return x * 2, torch.ones(4) + x.cpu()


def stays_inside(x: Tensor) -> Any:
    return x + torch.arange(4).sum()  # one of 0 dimensions


X, Y = ("cuda", (4,)), ("cpu", (4,))


@pytest.mark.parametrize(
    ("program", "given", "moved"),
    [
        (made_and_returned, [X], True),
        (made_of_a_scalar, [X, ("cpu", ())], True),
        (of_an_input, [X, Y], False),
        (read_back, [X], False),
        (stays_inside, [X], False),
        (lambda y: (y, y * 2), [Y], False),
        (lambda y: torch.ones(4), [Y], False),  # no GPU in sight
        (lambda x, y: (x * 2, y), [X, Y], False),
    ],
)
def test_graph_partition_is_off_where_outputs_would_move(
    program: Callable[..., Any], given: list[Any], moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)  # fake tensors need no GPU
    gm = captured(program, *given)
    expected = {"graph_partition": False} if moved else {}
    assert host_output_config(gm, WITH_GRAPHS) == expected
    assert host_output_config(gm, {}) == {}
    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        assert host_output_config(gm, {}) == expected
