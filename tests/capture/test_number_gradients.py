"""Gradients where torch has one rule for a Python number and another for a tensor that holds it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.torch_private.versions import clamp_gradients

from .support.side_by_side import side_by_side

Program = Callable[[Tensor, Any], Any]
CLAMPS: dict[str, Program] = {
    "lower": lambda x, s: x.clamp(s),
    "upper": lambda x, s: x.clamp(max=s),
    "clamp_min": lambda x, s: x.clamp_min(s),
    "clamp_max": lambda x, s: x.clamp_max(s),
    "above zero": lambda x, s: x.clamp(0, s),
    "below nine": lambda x, s: x.clamp(s, 9),
}
OTHERS: dict[str, Program] = {
    "power of almost one": lambda x, s: (1 + s * 1e-9) ** x,
    "lerp": lambda x, s: torch.lerp(x, x * 3, s),
    "lerp by almost one": lambda x, s: torch.lerp(x, x * 3, 1 - s * 1e-9),
    "xlogy": lambda x, s: torch.xlogy(x, s),
    "xlog1py": lambda x, s: torch.special.xlog1py(x, s),
    "xlogy of it": lambda x, s: torch.xlogy(s, x),
    "remainder": lambda x, s: x % s,
}


def read(program: Program) -> Callable[[Tensor, Tensor], Any]:
    return lambda x, t: program(x, t.sum().item())


def calls(*numbers: float, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    x = torch.tensor([0.0, 0.3, 0.9, -1.0, math.nan, math.inf], dtype=dtype)
    return [(x, torch.tensor([number])) for number in numbers]


@pytest.mark.parametrize("name", CLAMPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clamp(name: str, dtype: torch.dtype) -> None:
    given = calls(0.3, math.nan, 0.9, math.inf, -1.0, dtype=dtype)
    side_by_side(read(CLAMPS[name]), *given, grad=True).only("device", "on_device")


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_of_other_calls_on_numbers(name: str) -> None:
    side_by_side(read(OTHERS[name]), *calls(0.3, math.nan, 2.0, 1.3), grad=True)


def test_a_remainder_by_a_tensor_has_no_gradient() -> None:
    compiled = torch.compile(
        read(lambda x, s: s % x), backend="fusepass", options={"codegen": "eager"}
    )
    x, t = torch.tensor([2.0, 3.0]), torch.tensor([7.0])
    assert torch.equal(compiled(x, t), torch.tensor([1.0, 1.0]))
    with pytest.raises(RuntimeError, match="remainder"):
        compiled(x.requires_grad_(), t).sum().backward()


def test_the_gradient_of_a_clamp_by_a_number_is_torchs() -> None:
    rules = clamp_gradients()
    x = torch.tensor([1.0, math.nan], requires_grad=True)
    for name, rule in zip(("min", "max"), rules or (), strict=False):
        (found,) = torch.autograd.grad(x.clamp(**{name: 1.0}).sum(), x)
        assert [bool(one) for one in found] == list(rule)
    if rules is None:
        for name in ("min", "max"):
            bounds: list[Any] = [1.0, torch.tensor(1.0)]
            grads = [torch.autograd.grad(x.clamp(**{name: b}).sum(), x)[0] for b in bounds]
            assert torch.equal(*grads)
