"""A deque of the program holds no more items than it may, while its changes are traced."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from tests.capture.support.bookkeeping import kept_in_step


def test_length_of_a_full_deque() -> None:
    def make() -> Any:
        held: deque[float] = deque(maxlen=3)

        def call(loss: Tensor) -> Tensor:
            held.append(loss.item())
            return loss * len(held)

        return call, lambda: held

    kept_in_step(make)


def test_the_wrong_end_is_not_dropped() -> None:
    def make() -> Any:
        held = deque([1.0, 2.0, 3.0], maxlen=3)

        def call(loss: Tensor) -> Tensor:
            held.appendleft(0.5)
            return loss * 2

        return call, lambda: held

    kept_in_step(make)
