"""Values that eager's CPU kernels refuse are refused, with eager's error; others go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass

Program = Callable[..., Any]
X, S = torch.zeros(3, 4), torch.ones(2, 4)


def refused(program: Program, *given: Tensor) -> None:
    with pytest.raises((IndexError, RuntimeError)) as wanted:
        program(*given)
    with pytest.raises(wanted.type) as got:
        torch.compile(program, backend="fusepass")(*given)
    assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize("index", [[-1, 1], [0, 3]])
def test_index(index: list[int]) -> None:
    refused(lambda x, i, s: x.index_add(0, i, s), X, torch.tensor(index), S)
    refused(lambda x, i, s: x.index_add(0, i, s), X[:, 0], torch.tensor(index), S[:, 0])


@pytest.mark.parametrize("bad", [1.5, -0.5])
def test_probabilities(bad: float) -> None:
    refused(F.binary_cross_entropy, torch.full((4,), 0.5), torch.full((4,), bad))
    refused(F.binary_cross_entropy, torch.full((4,), bad), torch.full((4,), 0.5))


def test_values_in_range_pass_the_checks() -> None:
    def program(x: Tensor, i: Tensor, s: Tensor, p: Tensor) -> Tensor:
        x = x.index_add(0, i, s)
        return F.binary_cross_entropy(p, torch.sigmoid(x)) + x.index_add_(1, i, s.t()[:3, :2]).sum()

    p = torch.rand(3, 4, requires_grad=True)
    given = (X.clone(), torch.tensor([0, 2]), S, p)
    compiled = torch.compile(program, backend="fusepass")
    got, wanted = compiled(*given), program(*given)
    torch.testing.assert_close(got, wanted)
    grads = [torch.autograd.grad(one, [p])[0] for one in (got, wanted)]
    torch.testing.assert_close(*grads)
    assert "lost_check" in {d.rule for d in fusepass.last_report(compiled).decisions}


def test_empty_index() -> None:
    def program(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        return x.index_add(0, i, s)

    given = (X, torch.tensor([], dtype=torch.int64), S[:0])
    torch.testing.assert_close(torch.compile(program, backend="fusepass")(*given), program(*given))
