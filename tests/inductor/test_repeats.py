"""Which stretches of a graph count as equal layers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fusepass.inductor.repeated_layers import Layer, equal_layers

WEIGHTS = [torch.randn(8, 8) for _ in range(6)]


def layers_of(program: Callable[..., Any], *inputs: Any, grad: bool = False) -> tuple[Layer, ...]:
    found: list[tuple[Layer, ...]] = []

    def backend(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        found.append(equal_layers(gm.graph, 3))
        return gm.forward

    with torch.set_grad_enabled(grad):
        torch.compile(program, backend=backend, fullgraph=True)(*inputs)
    return found[0]


def normed_stack(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        x = x + F.relu(F.layer_norm(x, (8,)) @ weight)
    return x


def test_layers_begin_at_the_product() -> None:
    layers = layers_of(normed_stack, torch.randn(4, 8), WEIGHTS)
    assert len(layers) == 5  # the norm of the first and the end of the last are left over
    assert layers[0].nodes[0].target in (torch.matmul, operator.matmul)
    assert len(layers[0].results) == 2  # the residual and the next layer's norm


def test_a_value_every_layer_reads_is_an_operand() -> None:
    def program(x: Tensor, shared: Tensor) -> Tensor:
        for weight in WEIGHTS:
            x = (x @ weight + shared).relu()
        return x

    layers = layers_of(program, torch.randn(4, 8), torch.randn(4, 8))
    assert len(layers) == 6
    assert len(set.intersection(*(set(layer.operands) for layer in layers))) == 1


@pytest.mark.parametrize(
    "step",
    [
        lambda x, w, k: (x @ w).relu_(),
        lambda x, w, k: F.dropout(x @ w, 0.5),
        lambda x, w, k: (x @ w).t(),
        lambda x, w, k: (x @ w) * k,
        lambda x, w, k: x @ w[: 8 - k % 2].t() if k % 2 else x @ w,
        lambda x, w, k: (x + w).relu(),
    ],
    ids=["writes", "draws", "hands_out_a_view", "constants_differ", "shapes_differ", "no_product"],
)
def test_not_equal_layers(step: Callable[[Tensor, Tensor, int], Tensor]) -> None:
    def program(x: Tensor) -> Tensor:
        for k, weight in enumerate(WEIGHTS[:4]):
            x = step(x, weight, k)
            if x.shape[1] < 8:
                x = F.pad(x, (0, 1))
        return x

    assert layers_of(program, torch.randn(8, 8)) == ()


def test_not_with_gradients() -> None:
    stack = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    assert len(layers_of(stack, torch.randn(4, 8))) == 6
    assert layers_of(stack, torch.randn(4, 8), grad=True) == ()
