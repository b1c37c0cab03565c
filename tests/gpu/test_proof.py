"""Calls of our kernels tried on a CUDA device first, as with a torch that nobody has run them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

import fusepass
from fusepass import tune
from fusepass.errors import CandidateFailed
from fusepass.inductor import device_proof
from fusepass.kernels.gemm import normed_gemms as normed_kernel
from fusepass.kernels.gemm import op as gemm_kernel
from fusepass.patterns import (
    conv_region,
    conv_relu,
    depthwise,
    gemm_region,
    normed_gemms,
    pool,
    sibling_gemms,
)
from fusepass.torch_private.inductor import kernel_call, lowering
from fusepass.tune import Choice

pytestmark = pytest.mark.gpu
CACHED = (gemm_kernel.inductor_kernel, normed_kernel.kernel)


@pytest.fixture(autouse=True)
def untested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of this torch, and a kernel of ours is always chosen."""
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_call, "kernel_calls_tested", lambda: False)

    def choose(problem: Any, options: Any, candidates: Any) -> Choice:
        name = next(one.name for one in candidates[::-1] if one.refuses(problem) is None)
        return Choice(name, {name: 1.0}, "measured", "a test says so")

    for rule in (conv_region, conv_relu, depthwise, gemm_region, normed_gemms, pool, sibling_gemms):
        monkeypatch.setattr(rule, "choose", choose)
    for made in CACHED:
        made.cache_clear()
    tune.reset()
    yield
    for made in CACHED:
        made.cache_clear()
    tune.reset()


def half(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16() * 0.1


def last(*shape: int) -> Tensor:
    return half(*shape).to(memory_format=torch.channels_last)


def norm(x: Tensor, gain: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
    n = F.rms_norm(x, x.shape[-1:], gain, 1e-5)
    return [F.linear(n, w), F.linear(n, v)]


def updates(*given: Tensor) -> None:
    for p, g in zip(given[::2], given[1::2], strict=True):
        p.add_(g, alpha=-0.5)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "gemm_epilogue": (lambda x, w: F.hardswish(x @ w), [(512, 256), (256, 384)]),
    "gated_gemm": (
        lambda x, w, v: F.mish(F.linear(x, w)) * F.linear(x, v),
        [(512, 256), (384, 256), (384, 256)],
    ),
    "sibling_gemms": (
        lambda x, w, v: [F.linear(x, w), F.linear(x, v)],
        [(16, 256), (128, 256), (64, 256)],
    ),
    "normed_gemms": (norm, [(1, 256), (256,), (128, 256), (64, 256)]),
    "conv_relu": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b)),
        [(last, 2, 16, 16, 16), (last, 16, 16, 3, 3), (16,)],
    ),
    "conv_region": (
        lambda x, w: F.silu(F.conv2d(x, w)),
        [(last, 2, 32, 16, 16), (last, 32, 32, 3, 3)],
    ),
    "depthwise": (
        lambda x, w: F.silu(F.conv2d(x, w, groups=32)),
        [(last, 2, 32, 16, 16), (32, 1, 3, 3)],
    ),
    "pool": (lambda x: F.max_pool2d(F.relu(x), 2), [(1, 4, 32, 32)]),
    "horizontal": (updates, [(n,) for n in range(64, 74) for _ in range(2)]),
}


def drawn(shapes: list[tuple[Any, ...]]) -> list[Tensor]:
    return [one[0](*one[1:]) if callable(one[0]) else half(*one) for one in shapes]


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_used_once_they_were_seen_to_work(name: str, cache_dir: Path) -> None:
    program, shapes = PROGRAMS[name]
    given = drawn(shapes)
    compiled = torch.compile(program, backend="fusepass")
    mine, theirs = ([one.clone() for one in given] for _ in range(2))
    with torch.no_grad():
        got, codes = run_and_get_code(compiled, *mine)
        want = program(*theirs)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
    decisions = [d for d in fusepass.last_report(compiled).decisions if d.rule == name]
    assert [d.outcome for d in decisions] == ["applied"], decisions
    table = tune.decide.table_for(given[0].device)
    trials = [entry.candidate for key, entry in table.entries.items() if key.startswith("trial ")]
    assert trials == [device_proof.HOLDS]
    assert "kernel_launcher" not in codes[-1]


def test_a_kernel_with_other_numbers_is_left_out(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_region = lowering.compile_region

    def spoilt(function: Any, inputs: Any, patches: Any) -> Any:
        call = compiled_region(function, inputs, patches)
        return lambda: [one * 1.5 for one in call()]

    monkeypatch.setattr(lowering, "compile_region", spoilt)
    program, shapes = PROGRAMS["gemm_epilogue"]
    given = drawn(shapes)
    compiled = torch.compile(program, backend="fusepass")
    with torch.no_grad(), pytest.warns(CandidateFailed, match="not those of its reference"):
        torch.testing.assert_close(compiled(*given), program(*given), rtol=2e-2, atol=2e-2)
    (one,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == "gemm_epilogue")
    assert (one.outcome, one.reason_code) == ("rejected", "unsupported_version")
