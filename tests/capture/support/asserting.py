"""Programs that assert, in a file whose ``assert`` statements pytest does not rewrite."""

from __future__ import annotations

import torch
from torch import Tensor


def asserted_item(x: Tensor) -> Tensor:
    assert torch.all(x.sum() > 0).item(), "only positive values"
    assert x.max().item() <= 1e6, "small ones"
    return x * 2


def asserted_count(x: Tensor, m: Tensor) -> Tensor:
    assert len(x[m]) > 0
    return x[m].sum()


class Logs:
    """Asserts behind something that cannot wait: a list is changed."""

    def __init__(self) -> None:
        self.log: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        y = x * x
        self.log.append(x)
        try:
            largest = y.max() or x.sum()
        except ValueError:
            largest = y.relu()
        assert not (y.sum() > 5), f"bad values: {x}"
        assert not torch.isinf(y).any(), f"bad sum {x.sum().item()} in {tuple(x.shape)}"
        return y + largest
