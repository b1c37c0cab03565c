"""The thread that reads ahead: order, exceptions, how far it goes."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import gc
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from fusepass import errors
from fusepass.prefetching import lookahead
from fusepass.prefetching.lookahead import Lookahead, Staged

from .loaders import Endless, Own, ahead, none_is_left, threads, until

__all__ = ["none_is_left"]


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_all_items_in_order(count: int, depth: int) -> None:
    taken = ahead(range(count), depth)
    assert list(taken) == list(range(count))
    assert threads() == []  # at rest once the loop is over
    assert list(taken) == []
    assert taken.over


def test_advanced_in_one_thread_and_closed_there() -> None:
    where: list[int] = []

    def items() -> Iterator[int]:
        try:
            for n in range(3):
                where.append(threading.get_ident())
                yield n
        finally:
            where.append(threading.get_ident())

    for _ in ahead(items()):
        pass
    for _ in ahead(items()):
        break
    assert len(where) >= 6
    assert threading.get_ident() not in where
    assert len(set(where)) <= 2  # one for each loop; a number may come again


@pytest.mark.parametrize("depth", [1, 3])
def test_how_far_it_reads(depth: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    found = ahead(items(), depth)
    for used in range(4):
        until(lambda used=used: taken == used + depth + 1)
        time.sleep(0.02)
        assert taken == used + depth + 1  # and no further
        assert next(found) == used + 1


def test_not_further_while_an_item_is_still_read() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for n in range(6):
            taken.append(n)
            yield n

    found = Lookahead(items(), lambda n: Staged(n, settled=n % 3 != 1), lambda n: n, 4)
    until(lambda: taken == [0, 1])  # 1 is not settled
    time.sleep(0.02)
    assert taken == [0, 1]
    assert next(found) == 0
    time.sleep(0.02)
    assert taken == [0, 1]
    assert next(found) == 1
    until(lambda: taken == [0, 1, 2, 3, 4])  # 4 is not
    assert list(found) == [2, 3, 4, 5]


@pytest.mark.parametrize("kind", [Own, StopAsyncIteration, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_exception_after_all_items_before_it(at: int, kind: type[BaseException]) -> None:
    def items() -> Iterator[int]:
        yield from range(at)
        raise kind("this one")

    found, got = ahead(items()), []
    with pytest.raises(kind, match="this one") as caught:
        for item in found:
            got += [item]
    assert got == list(range(at))
    assert list(found) == []
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_exception_after_all_items_before_it", "__next__", "items"]


def test_generator_that_raises_stop_iteration() -> None:
    def items() -> Iterator[int]:
        yield 1
        next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(ahead(items()))


def test_exception_is_not_kept_alive() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise Own

    gone = None
    gc.disable()
    try:
        try:
            list(ahead(items()))
        except Own as error:
            gone = weakref.ref(error)
        assert gone is not None
        assert gone() is None  # without the collector: it is in no cycle
    finally:
        gc.enable()


@pytest.mark.parametrize("where", ["stage", "hand"])
def test_failing_to_make_an_item_ready(where: str) -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.set()

    def fail(n: int) -> Any:
        if n == 3:
            raise Own
        return n

    stage = (lambda n: Staged(fail(n))) if where == "stage" else Staged
    found = Lookahead(items(), stage, fail if where == "hand" else lambda n: n, 2)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Own):
        next(found)
    assert closed.is_set()
    assert threads() == []
    with pytest.raises(StopIteration):
        next(found)


def test_thread_that_dies_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "_work", lambda *_: None)
    with pytest.raises(errors.PrefetchDied):
        list(ahead(range(3)))


def test_killed_thread() -> None:
    """An exception sent from outside is one of the loader: nobody waits for ever."""

    def items() -> Iterator[int]:
        yield 1
        while True:
            time.sleep(0.001)

    found = ahead(items())
    assert next(found) == 1
    ident = ctypes.c_ulong(threads()[0].ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
    with pytest.raises(SystemExit):
        next(found)


def test_two_at_once_and_one_inside_the_other() -> None:
    assert list(zip(ahead(range(9)), ahead(range(9)), strict=True)) == [(n, n) for n in range(9)]
    inner = ahead(range(9), 1)
    assert list(ahead(inner, 3)) == list(range(9))
    loader = Endless()
    for item in ahead(ahead(loader)):
        if item == 2:
            break
    assert loader.finished == 1


def test_two_users_of_one() -> None:
    found, got = ahead(range(200)), []
    users = [threading.Thread(target=lambda: got.extend(found)) for _ in range(3)]
    for user in users:
        user.start()
    for user in users:
        user.join(10)
    assert sorted(got) == list(range(200))


def test_surroundings_are_around_everything() -> None:
    inside = threading.local()

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        inside.here = True
        yield
        del inside.here

    def items() -> Iterator[bool]:
        try:
            while True:
                yield inside.here
        finally:
            closing.append(inside.here)

    closing: list[bool] = []
    found = Lookahead(items(), lambda item: Staged((item, inside.here)), lambda x: x, 2, around)
    assert next(found) == (True, True)
    found.close()
    assert closing == [True]


def test_context_variables_are_those_of_the_loop() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(3)

    def items() -> Iterator[int]:
        yield variable.get()
        variable.set(4)

    assert list(ahead(items())) == [3]
    assert variable.get() == 3
