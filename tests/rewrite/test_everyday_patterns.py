"""Patterns a newcomer writes first: rotary embeddings, packed gates, norms, convolutions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusepass

X = torch.randn(4, 8)


def first_outcome(rule: fusepass.Rule, program: Callable[..., Any], *inputs: Tensor) -> str:
    """Reason code of the rule's first decision; results must be eager's."""
    with fusepass.rules(rule):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        with torch.no_grad():
            torch.testing.assert_close(compiled(*inputs), program(*inputs))
        decisions = fusepass.last_report(compiled).decisions
    return next((d.reason_code.value for d in decisions if d.rule == rule.name), "nothing")


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def test_rotary_embedding_at_any_size() -> None:
    rule = fusepass.Rule(
        "test_rope",
        lambda q, cos, sin: q * cos + rotate_half(q) * sin,
        lambda q, cos, sin: torch.addcmul(q * cos, rotate_half(q), sin),
        (torch.randn(2, 3, 8), torch.randn(3, 8), torch.randn(3, 8)),
    )

    def program(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = q[..., : q.shape[-1] // 2], q[..., q.shape[-1] // 2 :]
        return (q * cos) + (torch.cat((-b, a), dim=-1) * sin)

    for size in (8, 16):
        inputs = torch.randn(2, 5, size), torch.randn(5, size), torch.randn(5, size)
        assert first_outcome(rule, program, *inputs) == "proved"

    def wrong_half(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return q * cos + torch.cat((-q[..., 4:], q[..., :4]), dim=-1)[..., : q.shape[-1]] * sin

    inputs = torch.randn(2, 5, 16), torch.randn(5, 16), torch.randn(5, 16)
    assert first_outcome(rule, wrong_half, *inputs) != "proved"


def packed_gate(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.gelu(gate) * up


def test_several_results_of_one_operation() -> None:
    def replaced(x: Tensor) -> Tensor:
        gate, up = x.split(x.shape[-1] // 2, -1)
        return up * F.gelu(gate)

    rule = fusepass.Rule("test_gate", packed_gate, replaced, (X,))
    assert first_outcome(rule, packed_gate, torch.randn(2, 6)) == "proved"

    def both_read(x: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = torch.chunk(x, 2, dim=-1)
        return F.gelu(gate) * up, gate

    assert first_outcome(rule, both_read, torch.randn(2, 6)) == "extra_user"


def test_a_scalar_binds_to_a_default() -> None:
    rule = fusepass.Rule(
        "test_norm",
        lambda x, eps: F.layer_norm(x, x.shape[-1:], eps=eps).relu(),
        lambda x, eps: torch.relu(F.layer_norm(x, x.shape[-1:], eps=eps)) + 0,
        (X, 1e-3),
    )
    assert first_outcome(rule, lambda x: F.layer_norm(x, x.shape[-1:]).relu(), X) == "proved"
    named = lambda x: F.layer_norm(x, x.shape[-1:], eps=0.1).relu()  # noqa: E731
    assert first_outcome(rule, named, X) == "proved"


@pytest.mark.parametrize("eps", [1e-5, 1e-3])
def test_a_scalar_binds_to_the_default_of_a_function_in_python(eps: float) -> None:
    def pattern(x: Tensor, m: Tensor, v: Tensor, w: Tensor, b: Tensor, e: float) -> Tensor:
        return F.batch_norm(x, m, v, w, b, False, 0.1, e).relu()

    def replacement(x: Tensor, m: Tensor, v: Tensor, w: Tensor, b: Tensor, e: float) -> Tensor:
        return ((x - m) * (v + e).rsqrt() * w + b).relu()

    rows = [torch.rand(8) for _ in range(4)]
    rule = fusepass.Rule("test_norm", pattern, replacement, (X, *rows, eps))
    for given in ((), (1e-5,), (1e-3,)):
        fusepass.reset()  # a layer of one kind may come out of the cache
        layer = nn.Sequential(nn.BatchNorm1d(8, *given), nn.ReLU()).eval()
        assert first_outcome(rule, layer, X) == "proved"


@pytest.mark.parametrize("kind", ["none", "tanh"])
def test_a_scalar_whose_example_is_the_default_or_is_varied_to_it(kind: str) -> None:
    rule = fusepass.Rule(
        "test_gelu",
        lambda x, k: F.gelu(x, approximate=k) * 2,
        lambda x, k: F.gelu(x, approximate=k).mul(2) + 0,
        (X, kind),
    )
    assert first_outcome(rule, lambda x: F.gelu(x) * 2, X) == "proved"
    assert first_outcome(rule, lambda x: F.gelu(x, approximate="tanh") * 2, X) == "proved"


def test_methods_written_in_python() -> None:
    rule = fusepass.Rule(
        "test_unit",
        lambda x: x / x.norm(dim=-1, keepdim=True),
        lambda x: x * x.norm(dim=-1, keepdim=True).reciprocal(),
        (X,),
    )
    assert first_outcome(rule, lambda x: x / x.norm(dim=-1, keepdim=True), X) == "proved"
    assert first_outcome(rule, lambda x: x / x.norm(dim=0, keepdim=True), X) == "variant"


def test_convolution_and_pooling_modules() -> None:
    image, kernel = torch.randn(2, 3, 6, 8), torch.randn(4, 3, 3, 3)
    rule = fusepass.Rule(
        "test_conv",
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)) + 0,
        (image, kernel),
    )
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.ReLU())
    assert first_outcome(rule, module, image) == "proved"
    strided = nn.Sequential(nn.Conv2d(3, 4, 3, 2, padding=1, bias=False), nn.ReLU())
    assert first_outcome(rule, strided, image) == "variant"
    pool = fusepass.Rule(
        "test_pool",
        lambda x: F.max_pool2d(x.relu(), 2),
        lambda x: F.relu(F.max_pool2d(x, 2)) + 0,
        (image,),
    )
    assert first_outcome(pool, nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), image) == "proved"
    assert first_outcome(pool, nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, 1)), image) == "variant"


def test_a_constant_inside_a_tuple_differs() -> None:
    rule = fusepass.Rule(
        "test_eight",
        lambda x: F.layer_norm(x, (8,)).relu(),
        lambda x: F.relu(F.layer_norm(x, (8,))) + 0,
        (X,),
    )
    sixteen = lambda x: F.layer_norm(x, (16,)).relu()  # noqa: E731
    assert first_outcome(rule, sixteen, torch.randn(4, 16)) == "variant"


def test_compiled_functions_in_a_rule_run_as_written() -> None:
    rule = fusepass.Rule(
        "test_compiled", lambda x: x.sin() * 2, torch.compile(lambda x: 2 * x.sin() + 0), (X,)
    )
    assert first_outcome(rule, lambda x: x.sin() * 2, X) == "proved"


def test_saved_tensor_hooks_of_the_user_see_real_tensors_only() -> None:
    rule = fusepass.Rule(
        "test_hooks", lambda x: x.sin() * x.cos(), lambda x: x.cos() * x.sin() + 0, (X,)
    )
    with (
        fusepass.rules(rule),
        torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), torch.from_numpy),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", fusepass.FusepassWarning)
        compiled = torch.compile(
            lambda x: x.sin() * x.cos(), backend="fusepass", options={"codegen": "eager"}
        )
        compiled(torch.randn(4, 8, requires_grad=True))
        decisions = fusepass.last_report(compiled).decisions
    assert "applied" in [d.outcome.value for d in decisions if d.rule == rule.name]
