"""Arguments that are no tensors: which of the program's are those of the pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

X = torch.randn(4, 8)


def acts(rule: fusepass.Rule, program: Callable[..., Any], *inputs: Tensor) -> bool:
    """Whether a rule acts on a program, whose results must be eager's."""
    codegen = "eager" if rule.place == "before" else "eager-decomposed"
    with fusepass.rules(rule):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
        with torch.no_grad():
            torch.testing.assert_close(compiled(*inputs), program(*inputs))
    decisions = fusepass.last_report(compiled).decisions
    return any(d.rule == rule.name and d.outcome.value == "applied" for d in decisions)


@torch.library.custom_op("fusepass_test_constants::times_dim", mutates_args=())
def times_dim(x: Tensor, dim: int) -> Tensor:
    """An operator to which -1 is no last dimension."""
    return x * dim


@times_dim.register_fake
def _(x: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x)


# Pattern, how else it is written, and what is another computation, all of one shape of operands.
DIMS: dict[str, tuple[tuple[Any, ...], Callable[..., Any], Callable[..., Any], Any]] = {
    "unsqueeze": (
        (torch.randn(4, 8), torch.randn(4, 8, 8)),
        lambda x, y: (x.unsqueeze(-1) * y).sum(-1),
        lambda x, y: (x.unsqueeze(2) * y).sum(2),
        lambda x, y: (x.unsqueeze(1) * y).sum(-1),
    ),
    "unsqueeze from the front": (
        (torch.randn(4, 8), torch.randn(4, 8, 8)),
        lambda x, y: (x.unsqueeze(1) * y).sum(-1),
        lambda x, y: (x.unsqueeze(-2) * y).sum(-1),
        lambda x, y: (x.unsqueeze(-1) * y).sum(-1),
    ),
    "stack": (
        (torch.randn(8, 8), torch.randn(8, 8)),
        lambda x, y: torch.stack((x.sin(), y), -1).sum(0),
        lambda x, y: torch.stack((x.sin(), y), 2).sum(0),
        lambda x, y: torch.stack((x.sin(), y), 1).sum(0),
    ),
    "diag_embed": (
        (torch.randn(8, 8),),
        lambda x: torch.diag_embed(x.sin(), 0, 0, -1),
        lambda x: torch.diag_embed(x.sin(), 0, -3, 2),
        lambda x: torch.diag_embed(x.sin(), 0, 0, 1),
    ),
    "norm": (
        (torch.randn(8, 8, 8),),
        lambda x: torch.norm(x.sin(), dim=1),
        lambda x: torch.norm(x.sin(), dim=-2),
        lambda x: torch.norm(x.sin(), dim=-1),
    ),
    "cosine_similarity": (
        (torch.randn(8, 8), torch.randn(8, 8, 8)),
        lambda x, y: torch.cosine_similarity(x.sin(), y, 2),
        lambda x, y: torch.cosine_similarity(x.sin(), y, -1),
        lambda x, y: torch.cosine_similarity(x.sin(), y, 1),
    ),
    "tensordot": (
        (torch.randn(8, 8), torch.randn(8, 8, 8)),
        lambda x, y: torch.tensordot(x.sin(), y, ([1], [1])),
        lambda x, y: torch.tensordot(torch.sin(x), y, ([1], [1])),
        lambda x, y: torch.tensordot(x.sin(), y, ([1], [-1])),
    ),
    "tile": (
        (torch.randn(8, 8),),
        lambda x: x.sin().tile((1, 1)).sum(),
        lambda x: torch.tile(x.sin(), (1, 1)).sum(),
        lambda x: x.sin().tile((3, 1)).sum(),
    ),
    "unfold_backward": (
        (torch.randn(8, 8, 1),),
        lambda x: torch.ops.aten.unfold_backward(x.sin(), [8, 8], 1, 1, 1),
        lambda x: torch.ops.aten.unfold_backward(x.sin(), [8, 8], -1, 1, 1),
        lambda x: torch.ops.aten.unfold_backward(x.sin(), [8, 8], -2, 1, 1),
    ),
    "trapezoid": (
        (torch.randn(2, 5), torch.randn(4, 2, 1)),
        lambda y, x: torch.trapezoid(y.sin(), x, dim=1).sum(),
        lambda y, x: torch.trapezoid(torch.sin(y), x, dim=1).sum(),
        lambda y, x: torch.trapezoid(y.sin(), x, dim=-2).sum(),
    ),
    "of another library": (
        (X,),
        lambda x: times_dim(x.sin(), 1),
        lambda x: times_dim(torch.sin(x), dim=1),
        lambda x: times_dim(x.sin(), -1),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DIMS)
def test_dimensions_are_counted_as_the_operation_counts_them(name: str) -> None:
    inputs, pattern, same, other = DIMS[name]
    rule = fusepass.Rule(f"test_{name}", pattern, lambda *xs: pattern(*xs) + 0, inputs)
    assert acts(rule, pattern, *inputs)
    assert acts(rule, same, *inputs)
    assert not acts(rule, other, *inputs)


def test_dimensions_are_counted_from_the_result_after_autograd() -> None:
    rule = fusepass.Rule(
        "test_unsqueeze",
        lambda x, y: (x.unsqueeze(-1) * y).sum(-1),
        lambda x, y: x * y.sum(-1),
        (torch.randn(4, 8), torch.randn(4, 8, 6)),
        place="after",
    )
    y = torch.randn(8, 8, 8)
    assert acts(rule, lambda x, y: (x.unsqueeze(2) * y).sum(-1), y[0], y)
    assert not acts(rule, lambda x, y: (x.unsqueeze(1) * y).sum(-1), y[0], y)


INTS = torch.arange(32).reshape(4, 8)


def test_beside_integers_a_number_decides_the_dtype() -> None:
    """Divided at the end, the result is of one dtype either way."""

    def pattern(x: Tensor) -> Tensor:
        return x * 2 / 3

    def replacement(x: Tensor) -> Tensor:
        return (x + x) / 3

    of_floats = fusepass.Rule("test_twice", pattern, replacement, (X,))
    of_integers = fusepass.Rule("test_twice", pattern, replacement, (INTS,))
    assert acts(of_floats, lambda x: x * 2.0 / 3, X)
    assert acts(of_integers, lambda x: 2 * x / 3, INTS)
    assert acts(of_integers, lambda x: 2 * x / 3.0, INTS)  # a quotient is floating either way
    assert not acts(of_integers, lambda x: x * 2.0 / 3, INTS)  # rounds before, beyond 2 ** 24
    assert not acts(of_integers, lambda x: x * 2.0 / 3.0, INTS)


BYTES = torch.arange(1, 33, dtype=torch.uint8).reshape(4, 8)
EITHER_NUMBER: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]] = {
    "quotient": (lambda x: x / 255, lambda x: x / 255.0, True),
    "quotient of floats in the pattern": (lambda x: x / 255.0, lambda x: x / 255, True),
    "reflected quotient": (lambda x: 255 / x, lambda x: 255.0 / x, True),
    "fill": (lambda x: x.masked_fill(x > 3, 0), lambda x: x.masked_fill(x > 3, 0.0), True),
    "rounded quotient": (
        lambda x: torch.div(x, 3, rounding_mode="floor").float(),
        lambda x: torch.div(x, 3.0, rounding_mode="floor").float(),
        False,
    ),
    "comparison": (lambda x: x == 3, lambda x: x == 3.0, False),
}


@pytest.mark.parametrize("name", EITHER_NUMBER)
def test_only_where_it_can_matter_a_number_is_of_the_kind_in_the_pattern(name: str) -> None:
    pattern, other, same = EITHER_NUMBER[name]

    def behind(program: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: program(x).unsqueeze(0).sin()

    rule = fusepass.Rule(
        f"test_{name}", behind(pattern), lambda x: pattern(x).sin().unsqueeze(0), (BYTES,)
    )
    assert acts(rule, behind(pattern), BYTES)
    assert acts(rule, behind(other), BYTES) == same


def test_both_uses_of_one_number_have_one_kind() -> None:
    rule = fusepass.Rule(
        "test_read_twice",
        lambda x, k: (x * k).float() + (x + k),
        lambda x, k: (x + k) + (x * k).float(),
        (INTS, 3),
    )
    assert acts(rule, lambda x: (x * 2).float() + (x + 2), INTS)
    assert not acts(rule, lambda x: (x * 2).float() + (x + 2.0), INTS)


def test_beside_floats_both_may_be_of_either_kind() -> None:
    rule = fusepass.Rule("test_read_twice", lambda x, k: x * k + k, lambda x, k: k + x * k, (X, 3))
    assert acts(rule, lambda x: x * 2 + 2.0, X)
    assert acts(rule, lambda x: x * 2.0 + 2, X)
    assert not acts(rule, lambda x: x * 2.0 + 3, X)


def test_two_kinds_of_a_number_that_decides_are_named() -> None:
    rule = fusepass.Rule(
        "test_read_twice", lambda x, k: x * k + k, lambda x, k: k + x * k, (INTS, 3)
    )
    with fusepass.rules(rule):
        report = fusepass.explain(lambda x: x * 2 + 2.0, INTS)
    (reason,) = [d.reason for d in report.decisions if d.rule == rule.name]
    assert "two different numbers, 2 and 2.0" in reason
