"""Inductor fails on a rewritten graph: the graph runs without the rules, and the user is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor.lowering import register_lowering

import fusepass
from fusepass.errors import InductorFault
from fusepass.inductor.retry_without_rules import compiled_or_without_rules
from fusepass.options import Options
from fusepass.report.log import GraphRecord


@torch.library.custom_op("fusepass_test_second_try::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: grad * 2)


@register_lowering(torch.ops.fusepass_test_second_try.twice.default)
def _unlowerable(x: Any) -> Any:
    raise ValueError("no such loop")


def rules(place: str) -> Any:
    example = (torch.randn(2, 3),)
    rule = fusepass.Rule(
        "test_twice",
        lambda x: torch.tanh(x) * 2,
        lambda x: twice(torch.tanh(x)),
        example,
        place=place,
    )
    return fusepass.rules(rule)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if x.isnan().any():
            x = x.nan_to_num()
        return torch.tanh(x) * 2 + F.relu(x)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("grad", [False, True])
def test_goes_on_without_the_rules(place: str, grad: bool) -> None:
    torch.manual_seed(1)
    model = Branching()
    x = torch.randn(5, 4)
    compiled = torch.compile(model, backend="fusepass")
    with (
        rules(place),
        pytest.warns(InductorFault, match="no such loop"),
        torch.set_grad_enabled(grad),
    ):
        found = compiled(x)
    torch.testing.assert_close(found, model(x))
    if grad:
        wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        got = torch.autograd.grad(found.square().sum(), list(model.parameters()))
        torch.testing.assert_close(got, wanted)
    decisions = fusepass.last_report(compiled).decisions
    branches = [d for d in decisions if d.rule == "branch"]
    assert [d.treatment for d in branches] == ["where"]
    found_here = [d for d in decisions if d.rule == "test_twice"]  # and what nearly is in backward
    assert {decision.outcome.value for decision in found_here} == {"rejected"}
    assert ["no such loop" in decision.reason for decision in found_here].count(True) == 1
    assert not [d for d in decisions if d.reason_code == "rule_off"]
    assert fusepass.last_report(compiled).graph_breaks == ()


def test_the_error_may_have_no_text() -> None:
    attempts: list[Options] = []

    def compiled(options: Options) -> Any:
        attempts.append(options)
        if len(attempts) == 1:
            raise AssertionError
        return print

    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.warns(InductorFault, match="AssertionError: no text"):
        found = compiled_or_without_rules(gm, GraphRecord("f", "f.py", 1), Options(), compiled)
    assert found is print
    assert attempts[1].rules["host_tensor"] is False


def test_what_plain_inductor_cannot_compile_still_raises() -> None:
    compiled = torch.compile(lambda x: twice(x) + 1, backend="fusepass")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no such loop"):
        compiled(torch.randn(3))
