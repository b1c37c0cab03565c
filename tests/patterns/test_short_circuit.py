from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import fusepass.backend

Tensor = torch.Tensor


def either(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if a.any() or b.any():
        x = x.exp()
    return x + 1


def both(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if a.any() and b.any():
        x = x.exp()
    return x + 1


def second_only(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if not a.any() and b.any():
        x = x.exp()
    return x + 1


def unless_first_only(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if not a.any() or b.any():
        x = x.exp()
    return x + 1


def different_arms(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if a.any():
        x = x.exp()
    elif b.any():
        x = x.exp2()
    return x + 1


def same_operation_other_constant(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if a.any():
        x = x * 2.0
    elif b.any():
        x = x * 2.5
    return x + 1


def traced(function: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], list[fx.GraphModule]]:
    seen: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Any:
        result = fusepass.backend.fusepass(gm, inputs, options={"codegen": "eager"})
        seen.append(gm)
        return result

    keep.compiler_fn = fusepass.backend.fusepass
    return torch.compile(function, backend=keep), seen


def agrees(function: Callable[..., Tensor], compiled: Callable[..., Tensor]) -> None:
    x = torch.randn(3)
    for p, q in itertools.product([True, False], repeat=2):
        a, b = torch.tensor([p]), torch.tensor([q])
        assert torch.equal(compiled(a, b, x), function(a, b, x)), (p, q)


@pytest.mark.parametrize("function", [either, both, second_only, unless_first_only])
def test_a_shared_arm_is_run_once(function: Callable[..., Tensor]) -> None:
    compiled, seen = traced(function)
    agrees(function, compiled)
    (gm,) = seen
    assert sum(n.target == "exp" for n in gm.graph.nodes) == 1
    assert sum(n.target is torch.where for n in gm.graph.nodes) == 1


@pytest.mark.parametrize("function", [different_arms, same_operation_other_constant])
def test_arms_that_differ_stay_apart(function: Callable[..., Tensor]) -> None:
    compiled, seen = traced(function)
    agrees(function, compiled)
    (gm,) = seen
    assert sum(n.target is torch.where for n in gm.graph.nodes) == 2


def test_either_reduces_once() -> None:
    compiled, seen = traced(either)
    agrees(either, compiled)
    assert sum(n.target == "any" for n in seen[0].graph.nodes) == 1
