"""Whether two ways of computing the same gave the same, within rounding."""

from __future__ import annotations

import pytest
import torch

from fusepass.numerics import agree


def test_agreement() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), -2.0])
    assert agree([x, 3], [x.clone(), 3])
    assert agree([x * (1 + 1e-6)], [x])
    assert agree([x[:0]], [x[:0]])
    assert agree([x[0]], [x[0].clone()])
    assert agree([x.half() * 1.001], [x.half()])
    assert not agree([x * 1.01], [x])
    assert not agree([x.nan_to_num(7.0)], [x])
    assert not agree([x.nan_to_num(posinf=float("nan"))], [x])
    assert not agree([x.nan_to_num(float("nan"), float("-inf"))], [x])
    assert not agree([x, 3], [x, 4])
    assert not agree([torch.ones(2, 2).t()], [torch.ones(2, 2).half()])
    assert not agree([torch.tensor([1, 2])], [torch.tensor([1, 3])])
    a = torch.randn(4, dtype=torch.complex64)
    assert agree([a], [a.clone()])
    assert not agree([a], [100 * a])
    rows = torch.zeros(2, 1000)
    rows[0, 0] = 1e6
    assert not agree([rows + torch.tensor([[0.0], [1.0]])], [rows])
    with pytest.raises(ValueError, match="zip"):
        agree([x], [x, x])


def test_tf32_is_rounding_where_it_is_allowed() -> None:
    x = torch.tensor([1.0, 2.0, -3.0])
    assert not agree([x * 1.003], [x])
    assert agree([x * 1.003], [x], tf32=True)
    assert not agree([x * 1.2], [x], tf32=True)
    assert not agree([x.double() * 1.003], [x.double()], tf32=True)
