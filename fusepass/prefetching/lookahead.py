"""A thread that takes items from an iterator ahead of their user, and ends when it should.

What is promised to the user of the items:

- They come in the iterator's order, each once. If taking one raises, all items before it come
  first, then the exception itself, with the traceback of where it was raised; then nothing more.
- The iterator is advanced and let go of by the thread alone, and only as far as ``depth + 1``
  items beyond the last one handed over.
- The thread ends with the iterator, with :meth:`Lookahead.close`, when the ``Lookahead`` is
  dropped (``break``, an exception in the loop's body), and at interpreter exit. Whatever ends it
  waits up to :data:`PATIENCE`, so that the loader is at rest when a ``break`` is done.
- A thread that ends without a word raises in its user; nobody waits for it forever.

The two talk through ``SimpleQueue`` alone: its methods are atomic, so that neither an exception
sent to the thread nor a ``__del__`` inside the garbage collector can leave a lock behind.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
import queue
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fusepass.errors import PrefetchDied, PrefetchNotStopped
from fusepass.prefetching.gil_switching import short_turns

PATIENCE = 5.0  # seconds that ending waits for the thread
LOOK = 1.0  # seconds between two looks at whether the thread still lives
THREAD = "fusepass-prefetch"
END = object()  # no item of anyone's


@dataclass(frozen=True)
class Staged:
    """An item made ready by the thread.

    Attributes:
        value: what ``hand`` is given to make the item of.
        settled: the iterator may go on before that; False if ``hand`` still reads the item.
    """

    value: Any
    settled: bool = True


@dataclass
class _Queue:
    """Between the thread and the user."""

    ready: queue.SimpleQueue[Staged | _Last] = field(default_factory=queue.SimpleQueue)
    handed: queue.SimpleQueue[bool] = field(default_factory=queue.SimpleQueue)  # False: stop
    stopped: bool = False

    def wanted(self) -> bool:
        """Whether there is still a user."""
        return not self.stopped


@dataclass(frozen=True)
class _Last:
    """No item follows: the iterator is exhausted, or it failed."""

    error: BaseException | None


class Lookahead(Iterator[Any]):
    """The items of ``iterator``, up to ``depth`` of them made ready ahead.

    Args:
        iterator: advanced by the thread only; the caller should keep no reference to it.
        stage: makes an item ready, in the thread.
        hand: makes the item of what ``stage`` made, in the thread of the user.
        depth: most items that are ready and not handed over; one more may have been taken.
        around: entered by the thread around everything it does.

    Raises:
        PrefetchDied: from ``next``, if the thread ended without a word (in a forked child, say).
    """

    _thread: threading.Thread | None = None  # until one is running

    def __init__(
        self,
        iterator: Iterator[Any],
        stage: Callable[[Any], Staged],
        hand: Callable[[Any], Any],
        depth: int,
        around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._line, self._hand, self._over = _Queue(), hand, False
        # The thread must know nothing of self, or self would never be dropped. The iterator goes
        # in a list that the thread empties, so that the thread is the one to let go of it.
        inside = contextvars.copy_context()
        thread = threading.Thread(
            target=inside.run,
            args=(_work, self._line, [iterator], stage, depth, around),
            name=THREAD,
            daemon=True,  # a loader that never returns must not keep the process
        )
        thread.start()
        self._thread = thread
        _end_at_exit()
        _LIVE.add(self)

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        got = self._wait()
        if isinstance(got, _Last):
            self.close()  # its last word is said: this waits for moments
            if got.error is None:
                raise StopIteration
            try:
                raise got.error
            finally:
                del got  # or the traceback would hold itself
        try:
            item = self._hand(got.value)
        except BaseException:
            self.close()
            raise
        self._line.handed.put(True)
        return item

    @property
    def over(self) -> bool:
        """Whether no item can follow."""
        return self._over

    def close(self) -> None:
        """End the thread and drop what it has made ready. Does nothing the second time.

        Waits until the loader has returned from what it is doing, up to :data:`PATIENCE`.
        """
        thread, self._thread, self._over = self._thread, None, True
        if thread is None:
            return
        self._ask_to_end()
        if thread is not threading.current_thread() and not sys.is_finalizing():
            thread.join(PATIENCE)
            if thread.is_alive():
                warnings.warn(PrefetchNotStopped(PATIENCE), stacklevel=2)
        with contextlib.suppress(queue.Empty):
            while True:
                self._line.ready.get_nowait()

    def __del__(self) -> None:
        self.close()

    def _ask_to_end(self) -> None:
        self._line.stopped = True
        self._line.handed.put(False)

    def _wait(self) -> Staged | _Last:
        """The thread's next word."""
        while not self._over:  # another thread may have met the end meanwhile
            thread = self._thread
            gone = thread is None or not thread.is_alive()
            # Looked at before the queue: what a thread says last, it says while it lives.
            with contextlib.suppress(queue.Empty):
                return self._line.ready.get(timeout=0 if gone else LOOK)
            if gone:
                self.close()
                raise PrefetchDied
        return _Last(None)


def _work(
    line: _Queue,
    box: list[Iterator[Any]],
    stage: Callable[[Any], Staged],
    depth: int,
    around: Callable[[], contextlib.AbstractContextManager[Any]],
) -> None:
    """The thread's whole life; its last word says how it went."""
    try:
        with short_turns(), around():
            _pull(line, box, stage, depth)
    except BaseException as caught:  # noqa: BLE001 - raised again where the item was wanted
        # No other name for it here: its traceback leads to this frame, which would keep it alive.
        line.ready.put(_Last(_from_the_iterator(caught)))
    else:
        line.ready.put(_Last(None))


def _from_the_iterator(error: BaseException) -> BaseException:
    """The exception with its traceback cut to what is below this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code in _OWN:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _pull(
    line: _Queue, box: list[Iterator[Any]], stage: Callable[[Any], Staged], depth: int
) -> None:
    """Take items and make them ready until there are no more, or none are wanted."""
    iterator = box.pop()
    item = END
    ahead = 0  # items made ready and, as far as is known, not handed over
    try:
        while line.wanted():
            item = next(iterator, END)
            if item is END:
                return
            # Taken first, then waited for room: the loader works while its user is busy.
            ahead = _wait_until(line, ahead, depth - 1)
            if not line.wanted():
                return
            staged = stage(item)
            item = END  # or it would stay in memory while the next one is made
            if not line.wanted():
                return
            line.ready.put(staged)
            ahead += 1
            if not staged.settled:
                ahead = _wait_until(line, ahead, 0)
            del staged
    finally:
        # A generator is closed here, in its own thread, also if an exception's traceback keeps
        # this frame.
        del iterator, item


def _wait_until(line: _Queue, ahead: int, most: int) -> int:
    """Wait until at most ``most`` items are ahead, or none are wanted; how many there are."""
    while ahead > most and line.handed.get():
        ahead -= 1
    return ahead


_OWN = {_work.__code__, _pull.__code__}
_LIVE: weakref.WeakSet[Lookahead] = weakref.WeakSet()


@functools.cache
def _end_at_exit() -> None:
    """Once: end all threads before the interpreter does, which it would in the middle of a call."""
    atexit.register(_end_all)


def _end_all() -> None:
    until = time.monotonic() + PATIENCE
    left = [(one, one._thread) for one in _LIVE]
    for one, _ in left:
        one._ask_to_end()
    for _, thread in left:
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
