"""Tensors of a subclass that are written stay of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.testing.compare import assert_same

BASE = torch.linspace(-1.0, 2.0, 16).reshape(4, 4)


class Tagged(Tensor):
    """Every function goes through it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def row(w: Tensor, s: Tensor) -> Any:
    z = torch.zeros_like(s)
    z[0] = w[0]
    return z, w * 1.5


def in_place(w: Tensor, s: Tensor) -> Any:
    z = s * 2
    z.add_(w)
    return z, type(z) is Tagged, z + 1, isinstance(z * 2, Tagged)


def filled(w: Tensor, s: Tensor) -> Any:
    z = s * 2
    z.masked_fill_(w > 0, 1.0)
    return z


def masked(w: Tensor, s: Tensor) -> Any:
    z = torch.zeros_like(s)
    mask = w > 0
    z[mask] = (w * 2 + 1)[mask]
    print(float(w.max()), flush=True)  # noqa: T201
    return z, w * 1.5


def in_an_arm(w: Tensor, s: Tensor) -> Any:
    z = s + 1
    if w.sum() > 0:
        z[0].lerp_((w * 2)[0], 0.5)
        y = torch.where(z > 0, z, w)
    else:
        z[0].mul_(2)
        y = w * 2
    return z, y, s - y


def an_input(w: Tensor, s: Tensor) -> Any:
    s.add_(w)
    return s * 2, type(s) is Tagged


def out_of_a_call(w: Tensor, s: Tensor) -> Any:
    z = s * 2
    torch.add(z, w, out=z)
    return z


def a_plain_one(w: Tensor, s: Tensor) -> Any:
    z = w * 2
    z.add_(s)
    return z, type(z) is Tagged


ALL = [row, in_place, filled, masked, in_an_arm, an_input, out_of_a_call, a_plain_one]


@pytest.mark.parametrize("function", ALL, ids=lambda one: one.__name__)
def test_what_is_written_keeps_its_class(function: Callable[..., Any]) -> None:
    fusepass.reset()
    compiled = torch.compile(function, backend="fusepass", options={"codegen": "eager"})
    for sign in (1.0, -1.0, 1.0):
        left = []
        for target in (function, compiled):
            given = sign * BASE, (sign * BASE).as_subclass(Tagged)
            left.append([target(*given), given])
        assert_same(*left, "call")
        assert type(left[0][0]) is type(left[1][0])
