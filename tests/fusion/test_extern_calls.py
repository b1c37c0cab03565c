"""What nothing but library calls reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

import fusepass.kernels.conv.cudnn  # noqa: F401 - its operator
from fusepass.fusion.extern_calls import stays_inside
from tests.fusion.test_inductor_fusion import result_of_relu

STAYS: dict[str, Callable[[Tensor], Any]] = {
    "a product": lambda w: w @ w,
    "of a view": lambda w: w.view(4, 4) @ w.view(-1).view(2, 8).view(4, 4),
    "a convolution": lambda w: F.conv2d(torch.ones(1, 1, 5, 5), w.view(4, 1, 2, 2)),
}
LEAVES: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda w: (w @ w, w),
    "a view": lambda w: (w @ w, w.view(-1)),
    "a view that is none of those we know": lambda w: w[1:] @ w,
    "to a computation": lambda w: (w @ w, w + 1),
    "to another library call": lambda w: (w @ w, w.cumsum(0)),
    "nowhere": lambda w: w[0] * 0,
}


def _made(function: Callable[[Tensor], Any]) -> fx.Node:
    return result_of_relu(lambda x, w: function(torch.relu(x)))


@pytest.mark.parametrize("name", STAYS)
def test_results_read_only_by_library_calls(name: str) -> None:
    assert stays_inside(_made(STAYS[name]))


@pytest.mark.parametrize("name", LEAVES)
def test_results_read_by_generated_code(name: str) -> None:
    assert not stays_inside(_made(LEAVES[name]))


def test_a_call_of_ours() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    weight = graph.call_function(torch.ops.aten.relu.default, (x,))
    operator = torch.ops.fusepass.conv_relu.default
    graph.call_function(operator, (x, weight, None, None, [1, 1], [0, 0], [1, 1], 1))
    assert stays_inside(weight)
    graph.call_function(torch.ops.aten.sin.default, (weight,))
    assert not stays_inside(weight)


def test_results_without_readers() -> None:
    graph = fx.Graph()
    assert not stays_inside(graph.call_function(torch.ops.aten.relu.default, ()))
