"""Iterators under a lookahead, and what tests of one ask."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fusepass.prefetching.lookahead import THREAD, Lookahead, Staged


class Own(Exception):
    pass


class Endless:
    """Items without end; knows whether it is alive and whether it was finished."""

    def __init__(self) -> None:
        self.finished = 0

    def __iter__(self) -> Iterator[int]:
        try:
            n = 0
            while True:
                yield n
                n += 1
        finally:
            self.finished += 1


def ahead(iterator: Iterator[Any], depth: int = 2, **given: Any) -> Lookahead:
    """A lookahead that makes nothing of its items."""
    return Lookahead(iter(iterator), Staged, lambda item: item, depth, **given)


def threads() -> list[threading.Thread]:
    # One that is killed while Python takes it off its list has ended, and stays on the list.
    return [one for one in threading.enumerate() if one.name == THREAD and one.is_alive()]


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, at most a few seconds."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    assert threads() == []
    yield
    if threads():
        gc.collect()
    until(lambda: threads() == [])
