from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusepass

Tensor = torch.Tensor


def anys(x: Tensor, y: Tensor) -> Tensor:
    return (x > 1).any() | torch.any(y > 1)


def alls(x: Tensor, y: Tensor) -> Tensor:
    return torch.logical_and((x > -1).all(), (y > -1).all())


def any_and_any(x: Tensor, y: Tensor) -> Tensor:
    return (x > 1).any() & (y > 1).any()


def all_or_all(x: Tensor, y: Tensor) -> Tensor:
    return (x > -1).all() | (y > -1).all()


def along_a_dimension(x: Tensor, y: Tensor) -> Tensor:
    return (x > 1).any(0) | (y > 1).any(0)


def read_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = (x > 1).any()
    return first | (y > 1).any(), first


def other_shape(x: Tensor, y: Tensor) -> Tensor:
    return (x > 1).any() | (y[:1] > 1).any()


def of_integers(x: Tensor, y: Tensor) -> Tensor:
    return x.to(torch.uint8).any() | y.to(torch.uint8).any()


def decisions(function: Callable[..., object]) -> list[str]:
    compiled = torch.compile(function, backend="fusepass", options={"codegen": "eager"})
    for scale_x in (0.1, 10.0):
        for scale_y in (0.1, 10.0):
            x, y = torch.rand(4, 3) * scale_x - 0.05, torch.rand(4, 3) * scale_y - 0.05
            for mine, theirs in zip(
                torch.utils._pytree.tree_leaves(compiled(x, y)),
                torch.utils._pytree.tree_leaves(function(x, y)),
                strict=True,
            ):
                assert torch.equal(mine, theirs)
                assert mine.dtype == theirs.dtype
    report = fusepass.last_report(compiled)
    return [d.outcome.value for d in report.decisions if d.rule == "joined_reductions"]


@pytest.mark.parametrize("function", [anys, alls])
def test_one_reduction_is_left(function: Callable[..., object]) -> None:
    assert decisions(function) == ["applied"]


@pytest.mark.parametrize("function", [any_and_any, all_or_all, along_a_dimension, of_integers])
def test_other_connectives_and_reductions_are_not_sites(function: Callable[..., object]) -> None:
    assert decisions(function) == []


@pytest.mark.parametrize("function", [read_twice, other_shape])
def test_near_misses_are_rejected_with_a_reason(function: Callable[..., object]) -> None:
    assert decisions(function) == ["rejected"]
