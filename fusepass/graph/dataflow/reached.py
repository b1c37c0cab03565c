"""Walk from some starting points over operands, users or the like, and visit each node once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def reached(start: Iterable[_T], further: Callable[[_T], Iterable[_T]]) -> Iterator[_T]:
    """Each of ``start`` and all that leads on from there, once."""
    seen = dict.fromkeys(start)
    todo = [*seen]
    while todo:
        one = todo.pop()
        yield one
        for other in further(one):
            if other not in seen:
                seen[other] = None
                todo.append(other)
