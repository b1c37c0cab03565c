"""Which operations treat rows apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.graph.terms.rowwise import is_pointwise


@pytest.mark.parametrize("op", "add rdiv rrem rsub bitwise_left_shift cast".split())
def test_operations_on_each_element(op: str) -> None:
    assert is_pointwise(op)


@pytest.mark.parametrize("op", "sum matmul softmax permute unknown".split())
def test_operations_that_are_not_pointwise(op: str) -> None:
    assert not is_pointwise(op)


@pytest.mark.parametrize(
    "pattern",
    [lambda a: (5 / a) * a, lambda a: (5 // a) * a, lambda a: (5 % a) * a, lambda a: (a << 2) * a],
)
def test_a_rule_is_found_with_further_leading_dimensions(
    pattern: Callable[[Tensor], Tensor],
) -> None:
    rule = fusepass.Rule(
        "test_rows", pattern, lambda a: pattern(a) + 0, (torch.arange(1, 33).reshape(4, 8),)
    )
    a = torch.arange(1, 97).reshape(3, 4, 8)
    with fusepass.rules(rule):
        compiled = torch.compile(pattern, backend="fusepass", options={"codegen": "eager"})
        assert torch.equal(compiled(a), pattern(a))
    decisions = fusepass.last_report(compiled).decisions
    assert "applied" in [d.outcome.value for d in decisions if d.rule == rule.name]
