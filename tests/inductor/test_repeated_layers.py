"""Equal layers compiled once: the same values, gradients and writes, and a line in the report."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from tests.perf.suites.sync import clamp_encoder


def compiled(model: nn.Module, reuse: bool = True, **options: Any) -> Any:
    given = {"reuse_regions": reuse, **options}
    return torch.compile(model, backend="fusepass", options=given)


def told(model: Any) -> list[str]:
    decisions = fusepass.last_report(model).decisions
    return [one.reason for one in decisions if one.rule == "equal_layers"]


def encoder() -> tuple[nn.Module, Tensor]:
    model, (x,) = clamp_encoder("cpu", 8, 5, 32, torch.float32)
    assert isinstance(model, nn.Module)
    return model, x


@pytest.mark.sampled(2)
@torch.no_grad()
@pytest.mark.parametrize("dynamic", [False, True])
def test_values(dynamic: bool) -> None:
    model, x = encoder()
    flat, reused = compiled(model, reuse=False), compiled(model)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    assert torch.equal(reused(x), flat(x))
    assert told(reused) == ["4 equal layers of 11 operations compiled once"]
    assert told(flat) == []


@torch.no_grad()
def test_the_branch_is_taken_in_a_layer() -> None:
    model, x = encoder()
    x[0, 0] = float("inf")
    torch.testing.assert_close(compiled(model)(x), model(x), equal_nan=True)


@pytest.mark.sampled(2)
def test_gradients() -> None:
    # Outlined, these were wrong by half: see docs of fusepass.inductor.repeated_layers.
    model, x = encoder()
    found = []
    for call in (model, compiled(model)):
        model.zero_grad()
        call(x).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found[1], found[0])


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Tensor) -> list[Tensor]:
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1]).relu())
        return states


def test_not_where_gradients_are_recorded() -> None:
    model, x = Small(), torch.randn(4, 8)
    other = compiled(model)
    found = [
        torch.autograd.grad(call(x)[-1].square().sum(), [*model.parameters()])
        for call in (model, other)
    ]
    torch.testing.assert_close(found[1], found[0])
    assert told(other) == []


@torch.no_grad()
def test_hidden_states_of_every_layer() -> None:
    model, x = Small(), torch.randn(4, 8)
    reused = compiled(model)
    torch.testing.assert_close(reused(x), model(x))
    assert len(told(reused)) == 1
    assert reused(x)[0] is x


@pytest.mark.sampled(2)
@torch.no_grad()
@pytest.mark.parametrize("options", [{"inductor.cpp_wrapper": True}, {"codegen": "eager"}], ids=str)
def test_not_where_inductor_cannot_call_it(options: dict[str, Any]) -> None:
    model, x = encoder()
    other = compiled(model, **options)
    torch.testing.assert_close(other(x), model(x))
    assert told(other) == []
