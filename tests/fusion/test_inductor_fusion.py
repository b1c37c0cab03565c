"""What Inductor computes in the kernel of a reader, and what it has to store first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fusepass.fusion.extern_calls import feeds_generated_code


def result_of_relu(function: Callable[[Tensor, Tensor], Any]) -> fx.Node:
    graph = make_fx(function)(torch.randn(4, 4), torch.randn(4, 4)).graph
    (node,) = (one for one in graph.nodes if one.target is torch.ops.aten.relu.default)
    return node


GENERATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "element-wise": lambda x, w: x.relu() * 2,
    "a reduction": lambda x, w: x.relu().sum(0),
    "through views": lambda x, w: x.relu().t().reshape(2, 8) + 1,
    "beside a product": lambda x, w: ((y := x.relu()) @ w) @ (y + 1),
    "beside a product, and behind it": lambda x, w: (y := x.relu()) @ w + y.exp() + y,
}
CALLED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a product": lambda x, w: x.relu() @ w,
    "a product of a view": lambda x, w: x.relu().t() @ w,
    "nothing but the caller": lambda x, w: x.relu(),
    "a residual behind a product": lambda x, w: (y := x.relu()) @ w + y,
    "a residual far behind": lambda x, w: ((y := x.relu()) @ w).exp() @ w + y.t(),
}


@pytest.mark.parametrize("name", GENERATED)
def test_computed_by_the_reader(name: str) -> None:
    assert feeds_generated_code(result_of_relu(GENERATED[name]))


@pytest.mark.parametrize("name", CALLED)
def test_stored_for_the_reader(name: str) -> None:
    assert not feeds_generated_code(result_of_relu(CALLED[name]))


def test_what_the_kernel_takes_in_does_not_count() -> None:
    node = result_of_relu(lambda x, w: x.relu() * 2)
    assert not feeds_generated_code(node, ignored=list(node.users))
