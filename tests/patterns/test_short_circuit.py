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


def drawn_between(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    for test in (a, b):
        torch.rand(3)
        if test.any():
            return x.exp()
    return x + torch.rand(3)


def fails_between(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if a.any():
        return x.exp()
    x[torch.where(b, 3, 0)].sum()  # out of range where b is
    if b.any():
        return x.exp()
    return x + torch.rand(3)


def drawn_in_vain(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if a.any():
        torch.rand(3)
        return x.exp()
    if b.any():
        return x.exp()
    return x + torch.rand(3)


def drawn_in_the_arm(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if a.any() or b.any():
        return x * torch.rand(3)
    return x + 1


@pytest.mark.parametrize(
    ("function", "joined"),
    [(drawn_between, 0), (fails_between, 0), (drawn_in_vain, 0), (drawn_in_the_arm, 1)],
)
def test_what_may_not_run_untaken(function: Callable[..., Tensor], joined: int) -> None:
    compiled, seen = traced(function)
    x = torch.randn(3)
    for p, q in itertools.product([True, False], repeat=2):
        outcomes = []
        for one in (function, compiled):
            torch.manual_seed(3)
            try:
                outcomes.append([one(torch.tensor([p]), torch.tensor([q]), x), torch.rand(2)])
            except IndexError:
                outcomes.append([])
        assert len(outcomes[0]) == len(outcomes[1]), (p, q)
        assert all(map(torch.equal, *outcomes)), (p, q)
    nodes = [node for gm in seen for node in gm.graph.nodes]
    assert sum(node.target is torch.logical_or for node in nodes) == joined
