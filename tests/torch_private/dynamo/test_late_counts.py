"""A number that is computed behind the graph is no constant of the graph wherever it is put."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from tests.capture.support.bookkeeping import LOSSES, kept_in_step, of_class


class InATuple:
    def __init__(self) -> None:
        self.count = 2
        self.last: Any = None

    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.count += 1
            self.last = (self.count + 1, "taken")
        else:
            self.last = (self.count - 1, "other")
        return loss * 2


class InAList(InATuple):
    def __call__(self, loss: Tensor) -> Tensor:
        if loss > 0.6:
            self.count += 3
            self.last = [[self.count * 2], {"count": self.count}]
        return loss * 2


class Returned(InATuple):
    def __call__(self, loss: Tensor) -> Any:
        pair = None
        if loss > 0.6:
            pair = self.count + 1, self.count
            self.count = self.count * 2
        return loss * 2, pair


class Shown(InATuple):
    """Code looks at the number after all: it is Dynamo's own."""

    def __call__(self, loss: Tensor) -> Tensor:
        pair = 0, 0
        if loss > 0.6:
            self.count += 1
            pair = self.count + 1, 1
        return loss * pair[0]


@pytest.mark.parametrize("kind", [InATuple, InAList, Returned])
@pytest.mark.parametrize("losses", [LOSSES, LOSSES[::-1]])
def test_held_by_another_value(kind: type, losses: tuple[float, ...]) -> None:
    kept_in_step(of_class(kind), losses).whole(2)


def test_looked_at() -> None:
    kept_in_step(of_class(Shown))
