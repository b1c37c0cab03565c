"""Checks of how many elements a mask selects: the test and the raise they consist of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

Program = Callable[..., Any]


def of_elements(x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    whole = mask.unsqueeze(-1).expand_as(x)
    torch._check(x[whole].numel() == source.numel(), lambda: f"features {source.shape}")
    return x.masked_scatter(whole, source)


def of_rows(x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    torch._check_with(ValueError, x[mask].shape[0] == source.shape[0], lambda: "not as many")
    return x * 2


def of_a_quotient(x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    torch._check(x[mask].numel() // x.shape[0] >= 3)
    return x * 2


def in_order(x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    if not mask.any():
        raise AssertionError("nothing selected")
    torch._check_tensor_all(mask.sum() * x.shape[-1] == source.numel(), lambda: "not as many")
    if x[mask].numel() != source.numel():
        raise ValueError(f"{source.shape}")
    torch._check(x[mask].shape[0] < 6, lambda: f"too many for {x.shape[0]}")
    return x.masked_scatter(mask.unsqueeze(-1), source)


PROGRAMS = (of_elements, of_rows, of_a_quotient, in_order)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_both_outcomes(program: Program) -> None:
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for rows in (3, 6):
        for count in (3, 0, 6, 2):
            mask = (torch.arange(6) < count).reshape(2, 3)
            given = torch.zeros(2, 3, 4), torch.arange(rows * 4.0).reshape(rows, 4), mask
            found = []
            for call in (program, compiled):
                try:
                    found.append(call(*given).tolist())
                except Exception as error:  # noqa: BLE001 - compared
                    found.append((type(error), str(error)))
            assert found[0] == found[1]
    assert not fusepass.last_report(compiled).graph_breaks


def written_in_between(x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    mask = mask.clone()
    count = x[mask].numel()
    mask.logical_not_()
    torch._check(count == source.numel(), lambda: "not as many")
    return x * 2


@pytest.mark.parametrize(("count", "holds"), [(3, True), (0, False)])
def test_a_mask_that_is_written_before_the_check(count: int, holds: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(written_in_between, backend="fusepass", options={"codegen": "eager"})
    given = torch.ones(2, 3, 4), torch.zeros(3, 4), (torch.arange(6) < 3).reshape(2, 3)
    assert torch.equal(written_in_between(*given), compiled(*given))
    mask = (torch.arange(6) < count).reshape(2, 3)
    if holds:
        assert torch.equal(compiled(*given[:2], mask), given[0] * 2)
    else:
        with pytest.raises(RuntimeError, match="not as many"):
            compiled(*given[:2], mask)
