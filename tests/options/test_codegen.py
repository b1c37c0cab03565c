"""``codegen``: op by op, op by op after AOTAutograd, or through Inductor, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.options import CODEGENS


def program(x: Tensor, w: Tensor) -> Tensor:
    h = torch.nn.functional.gelu(x @ w)
    return h * 2 if h.sum() > 0 else h - 1


def aten_calls(run: Callable[[], Tensor]) -> tuple[Tensor, set[str]]:
    """The result of a call, and the ATen operators it ran (compiled code runs eagerly in a mode)."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = run()
    return result, {event.key for event in profile.key_averages()}


def test_these_are_all() -> None:
    assert set(CODEGENS) == {"inductor", "eager", "eager-decomposed"}


@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("sign", [1, -1])
def test_results(codegen: str, sign: int) -> None:
    x, w = torch.randn(4, 4) * sign, torch.randn(4, 4)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    torch.testing.assert_close(compiled(x, w), program(x, w))
    report = fusepass.last_report(compiled)
    (handed,) = (d for d in report.decisions if d.station == "hand_off")
    assert codegen in handed.reason.lower()
    assert ("op by op" in handed.reason) == ("Inductor" not in handed.reason)
    assert ("op by op" in handed.reason) == (codegen != "inductor")
    assert report.to_dict()["graphs"] == 1


def test_eager_is_bit_equal_and_calls_what_the_user_wrote() -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    compiled(x, w)
    result, calls = aten_calls(lambda: compiled(x, w))
    assert torch.equal(result, program(x, w))
    assert "aten::gelu" in calls
    assert "aten::where" in calls


def test_eager_decomposed_calls_the_parts() -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager-decomposed"})
    compiled(x, w)
    _, calls = aten_calls(lambda: compiled(x, w))
    assert "aten::gelu" not in calls
    assert {"aten::erf", "aten::where"} <= calls


@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed"])
def test_gradients(codegen: str) -> None:
    w = torch.randn(4, 4, requires_grad=True)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    x = torch.randn(4, 4)
    (found,) = torch.autograd.grad(compiled(x, w).sum(), w)
    (expected,) = torch.autograd.grad(program(x, w).sum(), w)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed"])
def test_inductor_is_left_alone(codegen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is generated: who hunts a bug must be able to rule Inductor out."""
    from torch._inductor import compile_fx

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("Inductor was called")

    monkeypatch.setattr(compile_fx, "compile_fx_inner", refuse)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(compiled(x, w), program(x, w))
