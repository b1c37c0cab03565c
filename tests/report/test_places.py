"""Where a report says that something is: at the program's line, not in torch's files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass


class Sub(Tensor):
    pass


class Guarded(nn.Module):
    """Runs in ``Sequential.forward``."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x + 1
        return x


def stored(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = 1.0
    return y + 1


def read(x: Tensor, mask: Tensor) -> Tensor:
    n = x.sum().item()
    return x * n + mask


def deviation(x: Tensor, mask: Tensor) -> Tensor:
    return nn.functional.gaussian_nll_loss(x, x, x.abs() + mask)


def validated(x: Tensor, mask: Tensor) -> Tensor:
    return torch.distributions.Normal(x, mask + 1.0, validate_args=True).mean


@pytest.mark.parametrize("program", [stored, read, deviation, validated])
@pytest.mark.parametrize("kind", [Tensor, Sub])
def test_the_programs_line(program: Callable[..., Any], kind: type[Tensor]) -> None:
    x, mask = torch.arange(4.0).as_subclass(kind), torch.tensor([True, False, True, True])
    report = fusepass.explain(program, x, mask)
    first = program.__code__.co_firstlineno
    placed = [d for d in report.decisions if d.file]
    assert placed
    assert all(d.file == __file__ for d in placed)
    assert all(first < d.line <= first + 3 for d in placed)


def test_a_module_in_one_of_torchs() -> None:
    report = fusepass.explain(nn.Sequential(Guarded(), Guarded()), torch.ones(3))
    told = [d for d in report.decisions if d.rule in ("branch", "branch_to_where")]
    assert told
    assert {d.file for d in told} == {__file__}
