"""A norm of one row and its products in one launch: what is taken, what is not, that all is equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fusepass.error_rule import error_bound, half_ulp, passes, rms, rms_error
from fusepass.options import Options
from fusepass.report.decision import Outcome
from fusepass.rewrite.after_autograd import rewrite_aten

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


@pytest.mark.sampled(3)
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


def test_scores_of_the_last_token() -> None:
    """Of one token the slice takes all, and is an alias."""

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


def _of(mean_of: Callable[[Tensor], Tensor], eps: float = EPS) -> Program:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        wide = x.float()
        scaled = wide * torch.rsqrt(mean_of(wide) + eps)
        return pair(gain * scaled.to(x.dtype), w, b)

    return program


def _centred(
    mean: Callable[[Tensor], Tensor] = lambda wide: wide.mean(-1, keepdim=True),
    var: Callable[[Tensor], Tensor] = lambda wide: wide.var(-1, keepdim=True, correction=0),
) -> Program:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        wide = x.float()
        normed = (wide - mean(wide)) * torch.rsqrt(var(wide) + EPS) * gain
        return pair(normed.to(x.dtype), w, b)

    return program


def _the_other_way(wide: Tensor, gain: Tensor) -> Tensor:
    variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    return (wide - variance) * torch.rsqrt(mean.abs() + 1) * gain


CLOSE: dict[str, Program] = {
    "no norm": lambda x, g, w, b: pair(x * g, w, b),
    "without a weight": lambda x, g, w, b: pair(F.rms_norm(x, (K,), None, EPS), w, b),
    "no weight of its own": lambda x, g, w, b: pair(F.layer_norm(x, (K,), None, g, EPS), w, b),
    "another mean is subtracted": _centred(lambda wide: wide.sin().mean(-1, keepdim=True)),
    "a variance with a correction": _centred(var=lambda wide: wide.var(-1, keepdim=True)),
    "the variance of another": _centred(
        var=lambda wide: wide.sin().var(-1, keepdim=True, correction=0)
    ),
    "a mean of squares that keep their mean": _centred(
        var=lambda wide: wide.pow(2).mean(-1, keepdim=True)
    ),
    "mean and variance the other way": lambda x, g, w, b: pair(
        _the_other_way(x.float(), g).to(x.dtype), w, b
    ),
    "a shift of each element": lambda x, g, w, b: pair(
        (F.layer_norm(x.float(), (K,), g.float(), None, EPS) + g[None].float()).to(x.dtype), w, b
    ),
    "a shift behind an RMSNorm": lambda x, g, w, b: pair(
        (scaled(x) * g.float() + g.float()).to(x.dtype), w, b
    ),
    "a shift with a factor": lambda x, g, w, b: pair(
        torch.add(layer_norm(x, g).float(), g.float(), alpha=2).to(x.dtype), w, b
    ),
    "its mean is wanted": lambda x, g, w, b: [
        (both := torch.var_mean(x.float(), -1, correction=0, keepdim=True))[1],
        pair(((x.float() - both[1]) * torch.rsqrt(both[0] + EPS) * g).to(x.dtype), w, b),
    ],
    "read by others, too": lambda x, g, w, b: [n := llama(x, g), pair(n, w, b)],
    "a view of it read by others": lambda x, g, w, b: [
        (n := llama(x, g)).view(-1),
        pair(n, w, b),
    ],
    "the weight of a product": lambda x, g, w, b: w @ llama(x, g).t(),
    "both operands": lambda x, g, w, b: (n := llama(x, g)) @ n.t(),
    "a bias": lambda x, g, w, b: torch.addmm(llama(x, g), x, w[:K, :].t()),
    "a gain for each element": lambda x, g, w, b: pair(llama(x, g[None]), w, b),
    "mean of another tensor": _of(lambda wide: wide.sin().pow(2).mean(-1, keepdim=True)),
    "mean of third powers": _of(lambda wide: wide.abs().pow(3).mean(-1, keepdim=True)),
    "a sum": _of(lambda wide: wide.pow(2).sum(-1, keepdim=True)),
    "no eps": _of(lambda wide: wide.pow(2).mean(-1, keepdim=True), 0.0),
    "cut to integers": lambda x, g, w, b: pair(scaled(x).to(torch.int8) * g, w, b),
    "zero or not": lambda x, g, w, b: pair(scaled(x).bool() * g, w, b),
    "its scale is wanted": lambda x, g, w, b: [
        s := torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS),
        pair(g * (x.float() * s).to(x.dtype), w, b),
    ],
    "norms of heads": lambda x, g, w, b: pair(llama(x.view(6, 8), g[:8]).view(1, K), w, b),
    "no finite eps": _of(lambda wide: wide.pow(2).mean(-1, keepdim=True), float("inf")),
    "another dtype behind": lambda x, g, w, b: llama(x, g).float() @ w.float().t(),
    "a sum behind each": lambda x, g, w, b: [
        F.hardswish(F.linear(n := llama(x, g), w[:N])),
        F.hardswish(F.linear(n, w[N:])),
    ],
}


@pytest.mark.parametrize("name", CLOSE)
def test_what_comes_close(name: str) -> None:
    given = drawn(torch.bfloat16, 1)
    gm, _ = rewritten(CLOSE[name], *given)
    assert "normed_gemms" not in gm.code
    by_error_rule(CLOSE[name], gm, given)


@pytest.mark.parametrize("shape", [(2,), (1, 3), (0,)], ids=str)
def test_other_numbers_of_rows(shape: tuple[int, ...]) -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return pair(llama(x, gain), w, b)

    gm, _ = rewritten(program, *drawn(torch.bfloat16, *shape))
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
