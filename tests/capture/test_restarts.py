"""Branches given back after an error that has emptied Dynamo's output graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import fusepass


def parts(count: Tensor, h: Tensor, x: Tensor) -> Iterator[Tensor]:
    if count.item():
        yield x.clamp(-1, 1)
    else:
        yield torch.maximum(h, x)
    yield x.relu()


def program(x: Tensor, level: Tensor, count: Tensor) -> Tensor:
    h = x.clone()
    if level.item():
        raise ArithmeticError(f"level {level.item()}")
    if level:
        raise ArithmeticError(f"bad sum {h.sum().item()} in {tuple(h.shape)}")
    y = x * 2
    for part in parts(count, h, x):
        y = y + part
    return y


@pytest.mark.parametrize("count", [0.0, 2.0])
def test_numbers_tested_in_front_of_what_cannot_be_traced(count: float) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x, calm = torch.tensor([-0.5, 0.25, 3.0]), torch.tensor(0.0)
    expected = program(x, calm, torch.tensor(count))
    assert torch.equal(compiled(x, calm, torch.tensor(count)), expected)
    with pytest.raises(ArithmeticError, match=r"level 1\.0"):
        compiled(x, torch.tensor(1.0), torch.tensor(count))
    assert fusepass.last_report(compiled).decisions
