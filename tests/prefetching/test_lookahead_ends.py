"""Every way to end a thread that reads ahead, and what is left then: nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from fusepass import errors
from fusepass.prefetching import lookahead

from .loaders import Endless, Own, ahead, none_is_left, threads, until

__all__ = ["none_is_left"]


def test_break_ends_the_thread_and_the_generator_before_it_is_done() -> None:
    loader = Endless()
    for item in ahead(loader):
        if item == 3:
            break
    assert loader.finished == 1
    assert threads() == []


def test_close() -> None:
    loader = Endless()
    found = ahead(loader)
    next(found)
    found.close()
    assert loader.finished == 1
    assert threads() == []
    with pytest.raises(StopIteration):
        next(found)
    found.close()


def test_closing_drops_what_is_ready() -> None:
    class Item:
        pass

    items = [Item() for _ in range(5)]
    alive = [weakref.ref(item) for item in items]
    found = ahead(iter(items.pop, None))
    until(lambda: len(items) <= 2)
    found.close()
    items.clear()
    assert [one() for one in alive] == [None] * 5


def test_generator_around_the_loop_is_closed() -> None:
    loader = Endless()

    def user() -> Iterator[int]:
        yield from ahead(loader)

    using = user()
    next(using)
    using.close()
    assert loader.finished == 1


def test_exception_in_the_loop() -> None:
    loader = Endless()

    def user() -> None:
        for _ in ahead(loader):
            raise Own

    with contextlib.suppress(Own):
        user()
    assert loader.finished == 1


def test_collected_in_a_cycle() -> None:
    loader = Endless()
    cycle: list[Any] = [ahead(loader)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert loader.finished == 1


def test_collected_by_its_own_thread() -> None:
    """The collector may run there; waiting for itself it would never end."""
    found: list[Any] = []

    kept = threading.Event()

    def items() -> Iterator[int]:
        kept.wait()
        found.clear()
        yield 1

    found.append(ahead(items()))
    kept.set()
    until(lambda: not found)


def test_generator_of_someone_else_is_let_go_of_and_not_closed() -> None:
    loader = Endless()
    generator = iter(loader)
    for _ in ahead(generator):
        break
    assert loader.finished == 0
    assert next(generator) >= 1  # some are gone: they were read ahead
    generator.close()


def test_loader_that_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "PATIENCE", 0.05)
    free = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        free.wait()
        yield 2

    found = ahead(items())
    assert next(found) == 1
    with pytest.warns(errors.PrefetchNotStopped, match=r"0\.05 s"):
        found.close()
    assert len(threads()) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.close()  # was said once
    assert list(found) == []
    free.set()


PROGRAM = """
import sys, threading, time
from fusepass.prefetching import lookahead

stuck = False

def items():
    try:
        while True:
            if stuck:
                time.sleep(1000)
            yield 1
    finally:
        print("closed", flush=True)

found = lookahead.Lookahead(items(), lookahead.Staged, lambda item: item, 2)
next(found)
{then}
"""


@pytest.mark.parametrize(
    ("then", "status", "said"),
    [
        ("", 0, "closed\n"),
        ("sys.exit(3)", 3, "closed\n"),
        # A loader that never returns does not keep the process.
        (
            "lookahead.PATIENCE = 0.2; time.sleep(0.3); stuck = True; next(found); time.sleep(0.3)",
            *(0, ""),
        ),
    ],
)
def test_interpreter_exit(then: str, status: int, said: str) -> None:
    code = PROGRAM.format(then=then)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, said, "")


FORKED = """
import os
from fusepass.prefetching import lookahead

found = lookahead.Lookahead(iter(range(100)), lookahead.Staged, lambda item: item, 2)
next(found)
if os.fork() == 0:
    try:
        print(sum(1 for _ in found) < 100)  # what was ready when it forked
    except RuntimeError as error:
        print(type(error).__name__, flush=True)
    os._exit(0)
os.wait()
print(sum(1 for _ in found))
"""


def test_forked_child_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("PrefetchDied\n99\n", "")


def test_interrupt_while_waiting_loses_nothing(request: pytest.FixtureRequest) -> None:
    """Ctrl-C is felt at once, and who catches it can go on."""
    # A job in the background of a shell starts with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    free = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        free.wait(10)
        yield from range(1, 5)

    found = ahead(items())
    assert next(found) == 0
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(found)
    assert time.monotonic() - begun < 3
    free.set()
    assert list(found) == [1, 2, 3, 4]
