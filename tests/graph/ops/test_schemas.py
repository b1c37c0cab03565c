"""Which operations may return an operand."""

from __future__ import annotations

import pytest

from fusepass.graph.ops.schemas import may_return_an_operand


@pytest.mark.parametrize(
    "name", "view t reshape contiguous to float detach chunk add_ dropout numpy my_function".split()
)
def test_those_that_may(name: str) -> None:
    assert may_return_an_operand(name)


@pytest.mark.parametrize("name", "add clone cat relu linear layer_norm zeros_like".split())
def test_those_that_do_not(name: str) -> None:
    assert not may_return_an_operand(name)
