"""The rule that drops attention masks known when compiling: where it acts, and where it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn.functional import scaled_dot_product_attention as attention

import fusepass
from fusepass.graph.ops.op_names import argument
from fusepass.torch_private.inductor import compile as inductor_compile

L, S = 6, 9
NAME = "constant_attention_mask"
ALLOWED = {"allow_hidden_nan": True}


def bools(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def all_true(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, k, k, attn_mask=bools(L, S))


def all_true_broadcast(q: Tensor, k: Tensor) -> Tensor:
    """As transformers passes it: expanded over batch and queries."""
    mask = bools(1, 1, 1, S).expand(q.shape[0], 1, L, S)
    return attention(q, k, k, attn_mask=mask)


def all_true_from_positions(q: Tensor, k: Tensor) -> Tensor:
    mask = (torch.arange(S) >= 0)[None, :] & (torch.arange(L) < L)[:, None]
    return attention(q, k, k, mask[None, None])


def all_true_keywords(q: Tensor, k: Tensor) -> Tensor:
    return attention(query=q, key=k, value=k, attn_mask=bools(L, S), dropout_p=0.0, scale=0.3)


def causal(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=bools(L, L).tril())


def causal_from_positions(q: Tensor, k: Tensor) -> Tensor:
    rows, columns = torch.arange(L)[:, None], torch.arange(L)[None, :]
    mask = (columns <= rows)[None, None].expand(q.shape[0], 1, L, L)
    return attention(q, q, q, attn_mask=mask)


def causal_as_not_triu(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=~bools(L, L).triu(1))


def causal_rectangular(q: Tensor, k: Tensor) -> Tensor:
    """Counted from the upper left corner, which is what is_causal stands for."""
    return attention(q, k, k, attn_mask=bools(L, S).tril())


def causal_scaled_positionally(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, bools(L, L).tril(), 0.0, False, scale=0.5)


def in_three_dimensions(q: Tensor, k: Tensor) -> Tensor:
    return attention(q[0], q[0], q[0], attn_mask=bools(L, L).tril())


FULL = [all_true, all_true_broadcast, all_true_from_positions]
CAUSAL = [
    causal,
    causal_from_positions,
    causal_as_not_triu,
    causal_rectangular,
    causal_scaled_positionally,
    in_three_dimensions,
]


def anti_causal(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=bools(L, L).triu())


def strictly_causal(q: Tensor, k: Tensor) -> Tensor:
    mask = bools(L, L).tril(-1) | (torch.arange(L) == 0)[:, None]
    return attention(q, q, q, attn_mask=mask)


def one_true_too_many(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=bools(L, L).tril(1))


def causal_from_the_lower_right(q: Tensor, k: Tensor) -> Tensor:
    """With a cache of earlier keys: all queries see the first S - L."""
    return attention(q, k, k, attn_mask=bools(L, S).tril(S - L))


def sliding_window(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=bools(L, L).tril() & bools(L, L).triu(-2))


def differs_by_head(q: Tensor, k: Tensor) -> Tensor:
    heads = torch.arange(2)[:, None, None] == 0
    return attention(q, q, q, attn_mask=(bools(L, L).tril() | heads)[None])


def without_mask(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=None, is_causal=True)


def float_mask(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=torch.zeros(L, L))


def mask_from_an_input(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=(q[0, 0] @ q[0, 0].t()) < 1e6)


def mask_from_a_random_draw(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=torch.rand(L, L) >= 0)


def mask_written_in_place(q: Tensor, k: Tensor) -> Tensor:
    mask = bools(L, L).clone()
    mask[0, 1] = False
    return attention(q, q, q, attn_mask=mask)


def with_dropout(q: Tensor, k: Tensor) -> Tensor:
    return attention(q, q, q, attn_mask=bools(L, L), dropout_p=0.5)


def mask_widens_the_batch(q: Tensor, k: Tensor) -> Tensor:
    return attention(q[:1], q[:1], q[:1], attn_mask=bools(3, 1, L, L))


REJECTED = {
    anti_causal: "variant",
    strictly_causal: "variant",
    one_true_too_many: "variant",
    causal_from_the_lower_right: "variant",
    sliding_window: "variant",
    differs_by_head: "variant",
    mask_from_an_input: "not_constant",
    mask_from_a_random_draw: "not_constant",
    mask_written_in_place: "not_constant",
    with_dropout: "random_op",
}
NOT_LOOKED_AT = [without_mask, float_mask]


@pytest.fixture
def arguments() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 2, L, 4), torch.randn(2, 2, S, 4)


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """Graphs as they would go to Inductor; they run op by op instead."""
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, *rest: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    monkeypatch.setattr(inductor_compile, "compile_with_inductor", keep)
    return graphs


def decisions(compiled: Any) -> list[tuple[str, str]]:
    report = fusepass.last_report(compiled)
    return [(d.outcome.value, d.reason_code.value) for d in report.decisions if d.rule == NAME]


def calls(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if getattr(n.target, "__name__", "") == attention.__name__]


@pytest.mark.parametrize(
    "program",
    [
        *FULL,
        *CAUSAL,
        all_true_keywords,
    ],
)
def test_acts(
    program: Callable[..., Tensor],
    rewritten: list[fx.GraphModule],
    arguments: tuple[Tensor, Tensor],
) -> None:
    compiled = torch.compile(program, backend="fusepass", options=ALLOWED)
    torch.testing.assert_close(compiled(*arguments), program(*arguments))
    assert decisions(compiled) == [("applied", "proved")]
    (call,) = calls(rewritten[0])
    assert argument(call, 3, "attn_mask") is None
    assert argument(call, 4, "dropout_p", 0.0) == 0.0
    assert argument(call, 5, "is_causal", False) is (program in CAUSAL)
    scale = {all_true_keywords: 0.3, causal_scaled_positionally: 0.5}.get(program)
    assert call.kwargs.get("scale") == scale


@pytest.mark.parametrize("program", [*FULL, all_true_keywords])
def test_a_mask_that_hides_nothing_needs_no_option(
    program: Callable[..., Tensor],
    rewritten: list[fx.GraphModule],
    arguments: tuple[Tensor, Tensor],
) -> None:
    compiled = torch.compile(program, backend="fusepass")
    torch.testing.assert_close(compiled(*arguments), program(*arguments))
    assert decisions(compiled) == [("applied", "proved")]


@pytest.mark.parametrize("program", CAUSAL)
def test_a_causal_mask_stays_unless_it_is_allowed(
    program: Callable[..., Tensor],
    rewritten: list[fx.GraphModule],
    arguments: tuple[Tensor, Tensor],
) -> None:
    compiled = torch.compile(program, backend="fusepass")
    torch.testing.assert_close(compiled(*arguments), program(*arguments))
    assert decisions(compiled) == [("rejected", "inexact")]
    (decision,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == NAME)
    assert "allow_hidden_nan" in decision.reason
    (call,) = calls(rewritten[0])
    assert argument(call, 3, "attn_mask") is not None


@pytest.mark.parametrize("program", REJECTED)
def test_near_miss(
    program: Callable[..., Tensor],
    rewritten: list[fx.GraphModule],
    arguments: tuple[Tensor, Tensor],
) -> None:
    compiled = torch.compile(program, backend="fusepass", options=ALLOWED)
    torch.manual_seed(0)
    expected = program(*arguments)
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(*arguments), expected)
    assert decisions(compiled) == [("rejected", REJECTED[program])]
    (call,) = calls(rewritten[0])
    assert isinstance(call.kwargs.get("attn_mask"), fx.Node)


@pytest.mark.parametrize("program", NOT_LOOKED_AT)
def test_not_looked_at(
    program: Callable[..., Tensor],
    rewritten: list[fx.GraphModule],
    arguments: tuple[Tensor, Tensor],
) -> None:
    compiled = torch.compile(program, backend="fusepass")
    torch.testing.assert_close(compiled(*arguments), program(*arguments))
    assert decisions(compiled) == []


def test_mask_that_widens_the_batch_stays(
    rewritten: list[fx.GraphModule], arguments: tuple[Tensor, Tensor]
) -> None:
    """All True, but without it the call would not raise, or would give another shape."""
    compiled = torch.compile(mask_widens_the_batch, backend="fusepass")
    try:
        expected = mask_widens_the_batch(*arguments)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="broadcast"):
            compiled(*arguments)
    else:
        assert compiled(*arguments).shape == expected.shape
    assert [outcome for outcome, _ in decisions(compiled)] == ["rejected"]


def test_is_causal_beside_a_mask_is_left_to_torch(rewritten: list[fx.GraphModule]) -> None:
    """Some versions and kernels refuse the pair, others accept it."""

    def both(q: Tensor) -> Tensor:
        return attention(q, q, q, attn_mask=bools(L, L), is_causal=True)

    q = torch.randn(1, 1, L, 4)
    compiled = torch.compile(both, backend="fusepass", options=ALLOWED)
    try:
        expected = both(q)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="is_causal"):
            compiled(q)
    else:
        torch.testing.assert_close(compiled(q), expected)
        assert decisions(compiled) == [("rejected", "variant")]


def test_dynamic_shape_stays(rewritten: list[fx.GraphModule]) -> None:
    def program(q: Tensor) -> Tensor:
        n = q.shape[-2]
        return attention(q, q, q, attn_mask=bools(n, n).tril())

    compiled = torch.compile(program, backend="fusepass", dynamic=True, options=ALLOWED)
    for size in (5, 8):
        q = torch.randn(1, 2, size, 4)
        torch.testing.assert_close(compiled(q), program(q))
    assert decisions(compiled) == [("rejected", "not_constant")]


def test_dynamic_batch_does_not_matter(rewritten: list[fx.GraphModule]) -> None:
    def program(q: Tensor) -> Tensor:
        return attention(q, q, q, attn_mask=bools(L, L).tril())

    compiled = torch.compile(program, backend="fusepass", options=ALLOWED)
    for batch in (2, 3, 4):
        q = torch.randn(batch, 2, L, 4)
        torch.testing.assert_close(compiled(q), program(q))
    assert set(decisions(compiled)) == {("applied", "proved")}


def test_mask_too_large_to_compute_stays(rewritten: list[fx.GraphModule]) -> None:
    def program(q: Tensor) -> Tensor:
        n = q.shape[-2]
        return attention(q, q, q, attn_mask=bools(n, n).tril())

    q = torch.randn(1, 1, 4200, 2)
    compiled = torch.compile(program, backend="fusepass", options=ALLOWED)
    compiled(q)
    assert decisions(compiled) == [("rejected", "not_constant")]


def test_several_calls_share_a_mask(rewritten: list[fx.GraphModule]) -> None:
    def layers(q: Tensor) -> Tensor:
        mask = bools(L, L).tril()
        for _ in range(3):
            q = attention(q, q, q, attn_mask=mask)
        return q

    compiled = torch.compile(layers, backend="fusepass", options=ALLOWED)
    q = torch.randn(1, 2, L, 4)
    torch.testing.assert_close(compiled(q), layers(q))
    assert decisions(compiled) == [("applied", "proved")] * 3


def test_grouped_heads_stay_grouped(rewritten: list[fx.GraphModule]) -> None:
    def program(q: Tensor, k: Tensor) -> Tensor:
        return attention(q, k, k, attn_mask=bools(L, L).tril(), enable_gqa=True)

    q, k = torch.randn(1, 4, L, 4), torch.randn(1, 2, L, 4)
    compiled = torch.compile(program, backend="fusepass", options=ALLOWED)
    torch.testing.assert_close(compiled(q, k), program(q, k))
    assert decisions(compiled) == [("applied", "proved")]


@pytest.mark.parametrize(
    "options", [{"rules": {NAME: False}}, {"codegen": "eager"}, {"codegen": "eager-decomposed"}]
)
def test_off(options: dict[str, Any], rewritten: list[fx.GraphModule]) -> None:
    """Op-by-op codegen promises the user's own calls, bit for bit."""
    q, k = torch.randn(2, 2, L, 4), torch.randn(2, 2, S, 4)
    compiled = torch.compile(causal, backend="fusepass", options={**ALLOWED, **options})
    torch.testing.assert_close(compiled(q, k), causal(q, k))
    assert decisions(compiled) == [("rejected", "rule_off")]


@pytest.mark.parametrize("program", [all_true_broadcast, causal, causal_rectangular])
def test_numerics_through_inductor(
    program: Callable[..., Tensor], arguments: tuple[Tensor, Tensor]
) -> None:
    """The error rule of docs/design/index.md: RMS against float64 at most twice eager's."""
    exact = program(*(a.double() for a in arguments))
    compiled = torch.compile(program, backend="fusepass", options=ALLOWED)
    found = compiled(*arguments)
    assert decisions(compiled) == [("applied", "proved")]
    assert found.stride() == program(*arguments).stride()

    def rms(value: Tensor) -> float:
        return float((value.double() - exact).square().mean().sqrt())

    half_an_ulp = float(exact.square().mean().sqrt()) * torch.finfo(torch.float32).eps / 2
    assert rms(found) <= max(2 * rms(program(*arguments)), half_an_ulp)


def test_gradients_through_inductor() -> None:
    q = torch.randn(1, 2, L, 4, requires_grad=True)
    compiled = torch.compile(causal, backend="fusepass", options=ALLOWED)
    (found,) = torch.autograd.grad(compiled(q, q).square().sum(), q)
    (expected,) = torch.autograd.grad(causal(q, q).square().sum(), q)
    torch.testing.assert_close(found, expected)
    assert decisions(compiled) == [("applied", "proved")]
