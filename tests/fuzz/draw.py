"""Where the choices of a program come from: a seeded generator, or Hypothesis.

The grammar asks for integers only. Small is simple: the first of several options, False, no repeat.
So Hypothesis makes a failing program short by making its integers small, and a campaign draws the
same programs without Hypothesis's book-keeping.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw(ABC):
    """A source of choices."""

    @abstractmethod
    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included; ``low`` is simplest."""

    def choice(self, options: Sequence[T]) -> T:
        """One of several; the first is simplest."""
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred; False is simplest."""
        return self.integer(0, 99) >= 100 - percent

    def weighted(self, weights: Mapping[T, int]) -> T:
        """A key, as often as its weight says; the first is simplest."""
        at = self.integer(0, sum(weights.values()) - 1)
        for option, weight in weights.items():
            if at < weight:
                return option
            at -= weight
        raise AssertionError("unreachable: the weights were summed above")


class RandomDraw(Draw):
    """Choices of a seeded generator: equal seeds make equal programs on every machine."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low + int(self._random.random() * (high - low + 1))


class HypothesisDraw(Draw):
    """Choices that Hypothesis records, replays and makes smaller."""

    def __init__(self, draw: Callable[..., int]) -> None:
        from hypothesis import strategies as st

        self._draw, self._integers = draw, st.integers

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return self._draw(self._integers(low, high))
