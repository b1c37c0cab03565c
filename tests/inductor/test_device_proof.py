"""Calls of our kernels where nobody has run them: tried first, left out if they fail.

On the CPU, where each operator computes its reference: what is tested is the trial.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor import config
from torch.nn import functional as F

import fusepass
from fusepass import tune
from fusepass.errors import CandidateFailed
from fusepass.inductor import device_proof
from fusepass.options import Options
from fusepass.report.decision import Outcome, Reason
from fusepass.rewrite.rule import Reject
from fusepass.torch_private.inductor import kernel_call, lowering

LAYERS = [f"linear_{act}{bias}" for act in ("relu", "gelu", "silu") for bias in ("", "_no_bias")]
REFERENCE = {"candidate": "reference", "rules": dict.fromkeys(LAYERS, False)}


@pytest.fixture(autouse=True)
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Each new call is tried, on the CPU, too; how many tensors each trial was given."""
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device_proof, "_DEVICES", ("cpu",))
    monkeypatch.setattr(device_proof, "needs_proof", lambda options: True)
    tune.reset()
    made: list[int] = []
    compiled = lowering.compile_region

    def counted(function: Any, inputs: Any, patches: Any) -> Any:
        made.append(len(inputs))
        return compiled(function, inputs, patches)

    monkeypatch.setattr(lowering, "compile_region", counted)
    yield made
    tune.reset()


def half(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16() * 0.1


def last(*shape: int) -> Tensor:
    return half(*shape).to(memory_format=torch.channels_last)


def reduced(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = F.gelu(x @ w)
    return h, h.sum(0)


def norm(x: Tensor, gain: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
    n = F.rms_norm(x, x.shape[-1:], gain, 1e-5)
    return [F.linear(n, w), F.linear(n, v)]


def updates(*given: Tensor) -> None:
    for p, g in zip(given[::2], given[1::2], strict=True):
        p.add_(g, alpha=-0.5)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "gemm_epilogue": (lambda x, w: F.gelu(x @ w), [half(128, 32), half(32, 24)]),
    "gemm_reductions": (reduced, [half(128, 32), half(32, 24)]),
    "gated_gemm": (
        lambda x, w, v: F.silu(x @ w) * (x @ v),
        [half(128, 32), half(32, 24), half(32, 24)],
    ),
    "sibling_gemms": (
        lambda x, w, v: [F.linear(x, w), F.linear(x, v)],
        [half(16, 32), half(24, 32), half(8, 32)],
    ),
    "normed_gemms": (norm, [half(1, 32), half(32), half(24, 32), half(8, 32)]),
    "conv_relu": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b)),
        [last(2, 16, 6, 6), last(16, 16, 3, 3), half(16)],
    ),
    "conv_region": (
        lambda x, w: F.silu(F.conv2d(x, w)),
        [last(2, 32, 6, 6), last(32, 32, 3, 3)],
    ),
    "depthwise": (
        lambda x, w: F.silu(F.conv2d(x, w, groups=32)),
        [last(2, 32, 6, 6), half(32, 1, 3, 3)],
    ),
    "pool": (lambda x: F.max_pool2d(F.relu(x), 2), [half(1, 4, 8, 8)]),
    "horizontal": (updates, [torch.randn(n) for n in range(4, 14) for _ in range(2)]),
    "horizontal apart": (
        lambda *given: [a * 2 + b for a, b in zip(given[::2], given[1::2], strict=True)],
        [torch.randn(n) for n in range(4, 14) for _ in range(2)],
    ),
}


def used(program: Callable[..., Any], given: list[Tensor]) -> list[tuple[str, Outcome, str]]:
    """What the rules after autograd said; results are eager's, those written into inputs, too."""
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options=REFERENCE)
    mine, theirs = ([one.clone() for one in given] for _ in range(2))
    with torch.no_grad(), config.patch(force_disable_caches=True):  # they spare the trial, too
        got, want = compiled(*mine), program(*theirs)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
    decisions = fusepass.last_report(compiled).decisions
    return [(one.rule, Outcome(one.outcome), one.reason) for one in decisions]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_correct_kernel_is_tried_once(name: str, trials: list[int]) -> None:
    program, given = PROGRAMS[name]
    rule = "gemm_epilogue" if name.startswith("gemm") else name.partition(" ")[0]
    for _ in range(2):
        found = used(program, given)
        assert [outcome for one, outcome, _ in found if one == rule] == [Outcome.APPLIED], found
    assert len(trials) == 1  # the second time the table knew
    tune.reset()  # another process, which reads the file
    used(program, given)
    assert len(trials) == 1
    used(program, [one.clone() for one in given])
    assert len(trials) == 1


def test_a_wrong_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    program, given = PROGRAMS["normed_gemms"]
    compiled = lowering.compile_region

    def spoilt(function: Any, inputs: Any, patches: Any) -> Any:
        call = compiled(function, inputs, patches)
        return lambda: [one * 1.5 for one in call()]

    monkeypatch.setattr(lowering, "compile_region", spoilt)
    with pytest.warns(CandidateFailed, match=r"fusepass\.\w+.*not those of its reference"):
        found = used(program, given)
    assert not [one for one in found if one[1] is Outcome.APPLIED]
    (why,) = {why for rule, _, why in found if rule == "normed_gemms"}
    assert f"undone: with torch {torch.__version__} fusepass.normed_gemms" in why
    monkeypatch.setattr(lowering, "compile_region", compiled)
    (why,) = {why for rule, _, why in used(program, given) if rule == "normed_gemms"}
    assert "failed when it was tried before" in why


def test_a_kernel_that_does_not_compile_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*given: Any) -> Any:
        raise RuntimeError("no such launcher")

    monkeypatch.setattr(lowering, "compile_region", refuses)
    with pytest.warns(CandidateFailed, match="no such launcher"):
        found = used(*PROGRAMS["pool"])
    assert [outcome for rule, outcome, _ in found if rule == "pool"] == [Outcome.REJECTED]


def test_other_rules_still_act(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the rule whose call failed is undone."""
    failing = device_proof.first_failure

    def fails(calls: list[fx.Node], sources: bytes) -> Reject | None:
        if "pool" in str(calls):
            return Reject(Reason.UNSUPPORTED_VERSION, "a test says so", calls[0])
        return failing(calls, sources)

    monkeypatch.setattr(device_proof, "first_failure", fails)
    (convolved, given), (pooled, images) = PROGRAMS["conv_region"], PROGRAMS["pool"]

    def program(x: Tensor, w: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        return convolved(x, w), pooled(image)

    given = [*given, *images]
    found = {rule: (outcome, why) for rule, outcome, why in used(program, given)}
    assert found["pool"][0] is Outcome.REJECTED
    assert found["pool"][1].endswith("a test says so")
    assert found["conv_region"][0] is Outcome.APPLIED


def test_sizes_that_vary(trials: list[int]) -> None:
    """They are tried with the sizes of the call that caused the compile."""
    module = nn.Sequential(nn.Linear(32, 24), nn.GELU()).bfloat16()
    compiled = torch.compile(module, backend="fusepass", options=REFERENCE, dynamic=True)
    with torch.no_grad():
        for rows in (256, 300):
            x = half(rows, 32)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), module(x), rtol=2e-2, atol=2e-2)
    rules = [d.rule for d in fusepass.last_report(compiled).decisions if d.outcome == "applied"]
    assert "gemm_epilogue" in rules
    assert len(trials) == 1


def test_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for tested in (True, False):
        monkeypatch.setattr(kernel_call, "kernel_calls_tested", lambda tested=tested: tested)
        assert device_proof.needs_proof(Options()) is not tested
        assert not device_proof.needs_proof(dataclasses.replace(Options(), candidate="reference"))


def test_each_operator_that_is_compiled_to_a_kernel_is_known() -> None:
    """Whatever a rule writes that is not an operator of torch's."""
    writers = {"gemm_region", "sibling_gemms", "normed_gemms", "conv_region", "conv_relu"}
    writers |= {"depthwise", "pool", "horizontal", "horizontal_into"}
    assert {str(one) for one in device_proof._compared_kernels()} == {
        f"fusepass.{name}.default" for name in writers
    }
