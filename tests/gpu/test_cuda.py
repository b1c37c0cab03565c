"""What only a GPU can show: no wait for the host, CUDA graphs, gradients, devices that differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fusepass

pytestmark = pytest.mark.gpu


class Guarded(nn.Module):
    """Three guarded feed-forward layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = h + nn.functional.gelu(layer(h))
            if torch.isinf(h).any() or torch.isnan(h).any():
                h = torch.clamp(torch.nan_to_num(h), -100, 100)
        return h


def rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def within_the_error_rule(compiled: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """RMS error against fp64 at most twice eager's, or half an ulp of the dtype at that RMS."""
    own, theirs = rms(compiled.double() - exact), rms(eager.double() - exact)
    floor = 0.5 * torch.finfo(eager.dtype).eps * rms(exact)
    return own <= max(2 * theirs, floor)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_both_outcomes_in_one_compile(mode: str, dtype: torch.dtype) -> None:
    model = Guarded().cuda().to(dtype).eval()
    exact = Guarded().cuda().double().eval()
    exact.load_state_dict(model.double().state_dict())
    model.to(dtype)
    compiled = torch.compile(model, backend="fusepass", mode=mode)
    ordinary = torch.randn(33, 64, device="cuda", dtype=dtype)
    overflowing = ordinary.clone()
    overflowing[0, 0] = float("inf")
    with torch.no_grad():
        for _ in range(3):
            for x in (ordinary, overflowing):
                want = model(x)
                got = compiled(x).clone()
                assert got.dtype == want.dtype
                assert got.stride() == want.stride()
                assert within_the_error_rule(got, want, exact(x.double()))
    assert fusepass.last_report(compiled).to_dict()["graphs"] == 1


def test_a_captured_branch_never_waits_for_the_host() -> None:
    model = Guarded().cuda().eval()
    compiled = torch.compile(model, backend="fusepass")
    x = torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        compiled(x)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with pytest.raises(RuntimeError, match="synchroniz"):
                model(x)  # eager does wait: the check is alive
            compiled(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("outcome", [True, False])
def test_gradients_have_no_nan_from_the_untaken_arm(outcome: bool) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x @ w
        if (h > 0).all():
            return h.sqrt() @ w
        return h.square() @ w

    compiled = torch.compile(program, backend="fusepass")
    x = torch.rand(8, 8, device="cuda") + 0.1
    w = torch.rand(8, 8, device="cuda") + 0.1
    if not outcome:
        x[0] = 0.0
    pairs = []
    for run in (program, compiled):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        run(a, b).sum().backward()
        pairs.append((a.grad, b.grad))
    for want, got in zip(*pairs, strict=True):
        assert torch.isfinite(got).all()
        torch.testing.assert_close(got, want)
    treatments = {d.treatment for d in fusepass.last_report(compiled).decisions if d.treatment}
    assert treatments == {"where"}


def test_a_host_predicate_over_device_arms_keeps_its_break() -> None:
    def program(flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if flag > 0 else x * 3

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.randn(4, device="cuda")
    for value in (1.0, -1.0):
        flag = torch.tensor(value)
        assert torch.equal(compiled(flag, x), program(flag, x))
    reasons = {d.reason_code.value for d in fusepass.last_report(compiled).decisions if d.treatment}
    assert reasons == {"device_mismatch"}


def attention(mask: Callable[[int], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        m = mask(q.shape[-2]).expand(q.shape[0], 1, -1, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)

    return program


def causal(n: int) -> torch.Tensor:
    i = torch.arange(n, device="cuda")
    return (i[None, :] <= i[:, None])[None, None]


def everything(n: int) -> torch.Tensor:
    i = torch.arange(n, device="cuda")
    return (i[:, None] >= 0).expand(n, n)[None, None]


@pytest.mark.parametrize("mask", [causal, everything])
def test_constant_masks_take_a_fused_kernel_and_stay_right(mask: Any) -> None:
    program = attention(mask)
    q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    compiled = torch.compile(program, backend="fusepass", options={"allow_hidden_nan": True})
    with torch.no_grad():
        got, want = compiled(q, k, v), program(q, k, v)
        exact = program(q.double(), k.double(), v.double())
    assert within_the_error_rule(got, want, exact)
    applied = [d for d in fusepass.last_report(compiled).decisions if d.outcome.value == "applied"]
    assert [d.rule for d in applied] == ["constant_attention_mask"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("mask", [causal, everything])
def test_constant_masks_pass_on_what_is_not_finite(
    mask: Any, value: float, dtype: torch.dtype
) -> None:
    program = attention(mask)
    for place in range(3):
        given = [torch.randn(2, 4, 256, 64, device="cuda", dtype=dtype) for _ in range(3)]
        given[place][:, :, 128] = value
        compiled = torch.compile(program, backend="fusepass")
        with torch.no_grad():
            got, want = compiled(*given), program(*given)
        assert torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize("treatment", ["where", "cond"])
def test_every_treatment_agrees(treatment: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu() if x.sum() > 0 else x.sin()

    compiled = torch.compile(program, backend="fusepass", options={"treatment": treatment})
    x = torch.rand(16, 16, device="cuda")
    for value in (x, -x):
        torch.testing.assert_close(compiled(value), program(value))
    assert {d.treatment for d in fusepass.last_report(compiled).decisions if d.treatment} == {
        treatment
    }
