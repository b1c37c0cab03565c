"""Sizes of what a match binds, held against those of the example."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fusepass


def doubled_first(x: Tensor, y: Tensor) -> Tensor:
    return (torch.cat((x, x)) + y).sum()


def doubled_last(y: Tensor, x: Tensor) -> Tensor:
    return (torch.cat((x, x)) + y).sum()


def apart_first(x: Tensor, y: Tensor) -> Tensor:
    return 2 * x.sum() + y.sum()


def apart_last(y: Tensor, x: Tensor) -> Tensor:
    return 2 * x.sum() + y.sum()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("rows", [10, 1])
@pytest.mark.parametrize(
    ("pattern", "replacement"), [(doubled_first, apart_first), (doubled_last, apart_last)]
)
def test_a_size_that_is_computed_from_another(
    pattern: Callable[..., Tensor],
    replacement: Callable[..., Tensor],
    rows: int,
    dynamic: bool | None,
) -> None:
    """One row would be broadcast, and the sum be another; the shape of the result is the same."""
    first = pattern is doubled_first
    example = (torch.randn(4), torch.randn(8))[:: 1 if first else -1]
    given = (torch.randn(5), torch.randn(rows))[:: 1 if first else -1]
    rule = fusepass.Rule("apart", pattern, replacement, example)
    with fusepass.rules(rule):
        torch._dynamo.reset()
        compiled = torch.compile(
            pattern, backend="fusepass", options={"codegen": "eager"}, dynamic=dynamic
        )
        torch.testing.assert_close(compiled(*given), pattern(*given))
        report = fusepass.last_report(compiled)
    (found,) = [d for d in report.decisions if d.rule == "apart"]
    assert found.outcome == ("applied" if rows == 10 else "rejected"), found.reason
    if rows == 1:
        assert found.reason_code == "shape_mismatch"
        assert "y.shape[0] is 1, the rule wants" in found.reason
