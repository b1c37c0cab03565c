"""Calls in place that leave another dtype than the plain operation has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import fusepass
from fusepass.graph.ops.normal_call import normal_call
from fusepass.graph.terms.term_graph import out_of_place_dtype
from fusepass.torch_private.fx.tracing import plain_fake_mode

X = torch.randn(4, 8)
WIDE, NARROW = torch.full((4, 8), 2**31), torch.arange(32, dtype=torch.int32).reshape(4, 8)
HALF = X.bfloat16()


@pytest.mark.parametrize(
    ("method", "operands", "dtype"),
    [
        ("eq_", (X, X), torch.bool),
        ("lt_", (NARROW, 3), torch.bool),
        ("logical_not_", (X,), torch.bool),
        ("mul_", (NARROW, WIDE), torch.int64),
        ("cumsum_", (NARROW, 0), torch.int64),
        ("add_", (HALF, X), torch.float32),
        ("add_", (HALF, X[0, 0]), None),  # without dimensions it gives way
        ("add_", (HALF, 1.5), None),
        ("add_", (X, NARROW), None),
        ("masked_fill_", (NARROW, X > 0, 0.0), None),
        ("index_fill_", (NARROW, 0, WIDE[0, :1] * 0, 3), None),
        ("addmm_", (torch.randn(4, 4), X, X.t()), None),
        ("relu_", (X,), None),
    ],
)
def test_the_dtype_of_the_plain_operation(
    method: str, operands: tuple[Any, ...], dtype: torch.dtype | None
) -> None:
    mode, graph = plain_fake_mode(), fx.Graph()
    args: list[Any] = []
    for place, operand in enumerate(operands):
        args.append(operand)
        if isinstance(operand, Tensor):
            args[-1] = graph.placeholder(f"x{place}")
            args[-1].meta["example_value"] = mode.from_tensor(operand)
    node = graph.call_method(method, tuple(args))
    node.meta["example_value"] = args[0].meta["example_value"]
    call = normal_call(node)
    assert call is not None
    assert call.inplace
    assert out_of_place_dtype(node, call) == dtype


def compared(x: Tensor, y: Tensor) -> Tensor:
    t = x.sin()
    t.eq_(y)
    return (t + t).double()


def wrapped(x: Tensor, y: Tensor) -> Tensor:
    t = x + 1
    t.mul_(y)
    return (t + t).double()


@pytest.mark.parametrize(
    ("pattern", "program", "inputs"),
    [
        (lambda x, y: (lambda t: (t + t).double())(x.sin() == y), compared, (X, X.sin())),
        (lambda x, y: (lambda t: (t + t).double())((x + 1) * y), wrapped, (NARROW, WIDE)),
        (lambda x, y: (lambda t: (t + t).double())((x + 1) * y), wrapped, (HALF, X)),
    ],
)
def test_a_rule_does_not_take_it_for_the_plain_operation(
    pattern: Callable[..., Tensor], program: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> None:
    rule = fusepass.Rule("test_in_place", pattern, lambda *xs: pattern(*xs) + 0, inputs)
    with fusepass.rules(rule):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        assert torch.equal(compiled(*inputs), program(*inputs))
    decisions = fusepass.last_report(compiled).decisions
    assert "applied" not in [d.outcome.value for d in decisions if d.rule == rule.name]
