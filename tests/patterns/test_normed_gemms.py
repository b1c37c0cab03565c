"""A norm of one row and its products in one launch: what is taken, what is not, that all is equal."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fusepass.errors import CandidateFailed
from fusepass.inductor.passes import rewrite_aten
from fusepass.kernels.gemm import tiles
from fusepass.kernels.gemm.tiles import ring_of
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from fusepass.options import Options
from fusepass.patterns import normed_gemms as rule
from fusepass.report.decision import Outcome
from fusepass.tune import Choice
from tests.kernels.gemm.test_op import EPILOGUES

PLAIN, SWIGLU = EPILOGUES["plain"], EPILOGUES["swiglu"]
K, N = 48, 24
EPS = 1e-5
NO_SIBLINGS = {"sibling_gemms": False}
Program = Callable[..., Any]


def llama(x: Tensor, gain: Tensor) -> Tensor:
    wide = x.float()
    return gain * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def gemma(x: Tensor, gain: Tensor) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + EPS)
    return (scaled * (1.0 + gain.float())).type_as(x)


def scaled(x: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), gain, EPS)


def layer_norm(x: Tensor, gain: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), gain, gain.flip(0), EPS)


def without_shift(x: Tensor, gain: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), gain, None, EPS)


def cohere(x: Tensor, gain: Tensor) -> Tensor:
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide - mean).pow(2).mean(-1, keepdim=True)
    scaled = (wide - mean) * torch.rsqrt(variance + EPS)
    return (gain.float() * scaled).to(x.dtype)


def by_variance(x: Tensor, gain: Tensor) -> Tensor:
    wide = x.float()
    away = wide - wide.mean(-1, keepdim=True)
    variance = wide.var(-1, keepdim=True, unbiased=False)
    return (gain + gain * (away / torch.sqrt(variance + EPS))).to(x.dtype)


Norm = Callable[[Tensor, Tensor], Tensor]
RMS_NORMS: dict[str, Norm] = {"llama": llama, "gemma": gemma, "rms_norm": rms_norm}
LAYER_NORMS: dict[str, Norm] = {
    one.__name__: one for one in (layer_norm, without_shift, cohere, by_variance)
}
NORMS = RMS_NORMS | LAYER_NORMS


def pair(n: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.linear(n, w[:N])) * F.linear(n, w[N : 2 * N])


def packed(n: Tensor, w: Tensor, b: Tensor) -> Tensor:
    gate, up = F.linear(n, w[: 2 * N]).chunk(2, -1)
    return F.gelu(gate) * up


def biased_pair(n: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.sigmoid(F.linear(n, w[:N], b)) * F.linear(n, w[N : 2 * N], b)


def attention(n: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    return [F.linear(n, w[:N], b), F.linear(n, w[N : N + 8]), F.linear(n, w[2 * N :])]


def activation(n: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.linear(n, w[:N], b)) ** 2


def alone(n: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(n, w)


READERS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    one.__name__: one for one in (pair, packed, biased_pair, attention, activation, alone)
}


def graph_of(program: Program, *given: Tensor) -> fx.GraphModule:
    with torch.no_grad():
        inner = make_fx(program, select_decomp_table(), tracing_mode="fake")(*given)
        made = make_fx(functionalize(inner), tracing_mode="fake")(*given)
    made.graph.eliminate_dead_code()  # what decompositions compute for nobody
    return made


def rewritten(program: Program, *given: Tensor) -> tuple[fx.GraphModule, list[Any]]:
    gm = graph_of(program, *given)
    decisions = rewrite_aten(gm.graph, Options(candidate="reference"), ())
    gm.recompile()
    gm.graph.lint()
    return gm, decisions


def drawn(dtype: torch.dtype, *shape: int, gain: torch.dtype | None = None) -> list[Tensor]:
    """x, the gain, weights and a bias."""
    torch.manual_seed(0)
    x = torch.randn(*shape, K) * 3
    weight, bias = torch.randn(3 * N, K) / K**0.5, torch.randn(N)
    vector = torch.rand(K) + 0.5
    return [x.to(dtype), vector.to(gain or dtype), weight.to(dtype), bias.to(dtype)]


def by_error_rule(program: Program, gm: fx.GraphModule, given: list[Tensor]) -> None:
    def flat(made: Any) -> list[Tensor]:
        return list(made) if isinstance(made, (list, tuple)) else [made]

    eager, exact = flat(program(*given)), flat(program(*(one.double() for one in given)))
    for got, theirs, want in zip(flat(gm(*given)), eager, exact, strict=True):
        assert (got.dtype, got.shape, got.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        scale = half_ulp(got.dtype, rms(want))
        assert passes(rms_error(got, want), error_bound(scale, rms_error(theirs, want), None))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("shape", [(1,), (1, 1)], ids=str)
def test_what_is_taken(norm: str, reader: str, shape: tuple[int, ...]) -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return READERS[reader](NORMS[norm](x, gain), w, b)

    for dtype in (torch.bfloat16, torch.float16):
        given = drawn(dtype, *shape)
        gm, decisions = rewritten(program, *given)
        assert gm.code.count("fusepass.normed_gemms") == 1
        assert "rsqrt" not in gm.code
        assert [one.rule for one in decisions if one.outcome is Outcome.APPLIED] == ["normed_gemms"]
        by_error_rule(program, gm, given)


@pytest.mark.parametrize("reader", ["pair", "attention", "alone"])
@pytest.mark.parametrize("there", [True, False])
def test_the_kernel_in_cuda_is_a_candidate(
    reader: str, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Hopper with NVRTC; if it is chosen it is compiled, and what stops that is told."""
    named: list[list[str]] = []
    choose, tile = rule.choose, ring_of(SWIGLU if reader == "pair" else PLAIN)
    assert tile is not None

    def chosen(problem: Any, options: Options, candidates: Any) -> Choice:
        named.append([one.name for one in candidates])
        found = choose(problem, options, candidates)
        return replace(found, candidate=tile.name) if there else found

    def refused(*given: Any) -> None:
        raise RuntimeError("no such driver")

    monkeypatch.setattr(rule, "choose", chosen)
    monkeypatch.setattr(rule, "prepare", refused)
    monkeypatch.setattr(tiles, "is_hopper", lambda device: True)
    monkeypatch.setattr(rule.nvrtc, "is_there", lambda: there)

    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return READERS[reader](llama(x, gain), w, b)

    gm = graph_of(program, *drawn(torch.bfloat16, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error" if not there else "ignore", CandidateFailed)
        decisions = rewrite_aten(gm.graph, Options(candidate="reference"), ())
    assert (tile.name in named[0]) == there
    assert ("fusepass.normed_gemms" in str(gm.graph)) != there
    whys = [one.reason for one in decisions if one.rule == "normed_gemms"]
    assert any("no such driver" in str(why) for why in whys) == there


def test_scores_of_the_last_token() -> None:
    """A slice of a single token takes all, and is an alias."""

    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return alone(torch.ops.aten.alias(llama(x, gain)), w, b).float()

    given = drawn(torch.bfloat16, 1, 1)
    gm, _ = rewritten(program, *given)
    assert "normed_gemms" in gm.code
    by_error_rule(program, gm, given)


def test_a_gain_in_single_precision() -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * gain
        return pair(scaled.to(x.dtype), w, b)

    given = drawn(torch.bfloat16, 1, gain=torch.float32)
    gm, _ = rewritten(program, *given)
    assert "normed_gemms" in gm.code
    by_error_rule(program, gm, given)


def test_a_residual_is_added_by_the_product_before() -> None:
    """And stays there for who adds to it later: two layers, of which the second has a norm."""

    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        summed = x + F.linear(F.linear(x, w[:N]), w[:, :N][:K])
        return summed + F.linear(pair(llama(summed, gain), w, b), w[:, :N][:K])

    given = drawn(torch.bfloat16, 1, 1)
    gm, _ = rewritten(program, *given)
    assert gm.code.count("fusepass.normed_gemms") == 1
    sums = [node for node in gm.graph.nodes if str(node.target) == "aten.add.Tensor"]
    assert not sums
    by_error_rule(program, gm, given)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 1e-38])
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("norm", ["llama", "layer_norm"])
def test_special_numbers(value: float, everywhere: bool, norm: str) -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return attention(NORMS[norm](x, gain), w, b)

    given = drawn(torch.bfloat16, 1)
    given[0][0, slice(None) if everywhere else 3] = value
    gm, _ = rewritten(program, *given)
    assert "normed_gemms" in gm.code
    for got, want in zip(gm(*given), program(*given), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shape", [(2,), (1, 3), (0,)], ids=str)
def test_other_numbers_of_rows(shape: tuple[int, ...]) -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return pair(llama(x, gain), w, b)

    gm, _ = rewritten(program, *drawn(torch.bfloat16, *shape))
    assert "normed_gemms" not in gm.code


@pytest.mark.parametrize("norm", NORMS)
def test_rows_of_nothing(norm: str) -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return F.linear(NORMS[norm](x, gain), w, b)

    given = [torch.randn(shape).bfloat16() for shape in ((1, 0), (0,), (N, 0), (N,))]
    gm, _ = rewritten(program, *given)
    assert "normed_gemms" not in gm.code


def test_a_mean_over_other_elements() -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        wide = x.float()
        mean = wide.pow(2).mean((0, 1), keepdim=True)
        return pair(gain * (wide * torch.rsqrt(mean + EPS)).to(x.dtype), w, b)

    gm, _ = rewritten(program, *drawn(torch.bfloat16, 1))
    assert "normed_gemms" not in gm.code


def test_a_write_in_front_of_the_last_product() -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        n = llama(x, gain)
        first = F.linear(n, w[:N])
        x.mul_(2)
        return [first, F.linear(n, w[N:])]

    given = drawn(torch.bfloat16, 1)
    gm = make_fx(program, select_decomp_table(), tracing_mode="fake")(*given)
    rewrite_aten(gm.graph, Options(candidate="reference"), ())
    assert "normed_gemms" not in gm.code


def test_a_gain_that_is_rounded_when_summed() -> None:
    """The sum is a gain of its own then, or nothing is taken: not the number before it."""

    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return pair((scaled(x) * (256.0 + gain).float()).to(x.dtype), w, b)

    given = drawn(torch.bfloat16, 1)
    gm, _ = rewritten(program, *given)
    torch.testing.assert_close(gm(*given), program(*given), rtol=2e-2, atol=2e-2 * 256**2)


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_scaled_products(beta: float) -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        n = llama(x, gain)
        return [torch.addmm(b, n, w[:N].t(), beta=beta, alpha=2.0), n @ w[N:].t()]

    given = drawn(torch.bfloat16, 1)
    gm, _ = rewritten(program, *given)
    by_error_rule(program, gm, given)


def test_two_norms_of_one_row() -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return [pair(llama(x, gain), w, b), attention(gemma(x, gain), w, b)[0]]

    given = drawn(torch.bfloat16, 1)
    gm, _ = rewritten(program, *given)
    assert gm.code.count("fusepass.normed_gemms") == 2
    by_error_rule(program, gm, given)
