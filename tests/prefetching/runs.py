"""One random loop over ``prefetch``, with a fault in it, held to what the plain loop would show."""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

import fusepass
from fusepass import errors
from fusepass.prefetching.lookahead import THREAD


class Backend(Protocol):
    """A device, as a run uses it."""

    kind: str
    largest: int
    dice: random.Random

    def streams(self) -> contextlib.AbstractContextManager[None]: ...
    def read(self, tensor: Tensor) -> Any: ...
    def results(self, handles: list[Any]) -> list[list[float]]: ...
    def pinned_by_loader(self, count: int) -> Tensor: ...


class Fault(BaseException):
    """Nothing that anyone would catch."""


class Pair(NamedTuple):
    one: Any
    rest: Any


class Mover:
    """Moves itself when it is handed over."""

    def __init__(self, tensor: Tensor, backend: Backend) -> None:
        self.tensor, self.backend = tensor, backend

    def to(self, device: torch.device) -> Mover:
        real = self.backend.kind == "cuda"
        return Mover(self.tensor.to(device) if real else self.tensor.clone(), self.backend)


RAISED = [ValueError, StopAsyncIteration, KeyboardInterrupt, SystemExit, Fault]
ENDS = ["exhaust", "break", "close", "generator", "raise", "drop", "kill", "nested", "twice"]


class Loader:
    """Batches drawn from a seed; element by element they are ``number of the batch * 10 + leaf``.

    Attributes:
        count: batches before it ends, or raises.
        fault: what it raises then, or None.
        live: generators that have begun and not ended.
        strangers: how many of them ended in another thread than they ran in.
    """

    def __init__(self, seed: int, backend: Backend) -> None:
        self.dice = random.Random(seed)
        self.backend = backend
        self.count = self.dice.randint(0, 9)
        self.fault = self.dice.choice([None, None, None, *RAISED])
        self.reuses = self.dice.random() < 0.4
        self.pins = self.reuses and self.dice.random() < 0.5
        self.slow = self.dice.choice([0.0, 0.0, 0.0005, 0.002])
        self.live = self.strangers = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        dice = random.Random(self.dice.random())
        self.live += 1
        mine = threading.get_ident()
        try:
            make = self.backend.pinned_by_loader if self.pins else torch.empty
            buffers = [make(2 * self.backend.largest) for _ in range(3)]
            for number in range(self.count):
                if self.slow and dice.random() < 0.5:
                    time.sleep(dice.random() * self.slow)
                leaves = []
                for leaf in range(dice.randint(1, 3)):
                    size = dice.randint(1, self.backend.largest)
                    if self.reuses:
                        tensor = buffers[leaf][:size]
                    else:
                        tensor = torch.empty(2 * size)[:: dice.choice([1, 2])]
                    leaves.append(tensor.fill_(number * 10 + leaf))
                yield contained(leaves, dice, self.backend)
            if self.fault is not None:
                raise self.fault(f"after {self.count}")
        finally:
            self.live -= 1
            self.strangers += threading.get_ident() != mine


def contained(leaves: list[Tensor], dice: random.Random, backend: Backend) -> Any:
    """The leaves in a container that shows their order."""
    kinds: list[Callable[[], Any]] = [
        lambda: tuple(leaves),
        lambda: {"list": list(leaves), "note": "text"},
        lambda: Pair(leaves[0], leaves[1:]),
        lambda: OrderedDict(enumerate(leaves)),
        lambda: UserDict(enumerate(leaves)),
        lambda: [Mover(leaf, backend) if dice.random() < 0.5 else leaf for leaf in leaves],
    ]
    return dice.choice(kinds)()


def leaves_of(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mover):
        return [batch.tensor]
    if isinstance(batch, (dict, UserDict)):
        batch = list(batch.values())
    return [leaf for one in batch if not isinstance(one, str) for leaf in leaves_of(one)]


def threads() -> list[threading.Thread]:
    # One that is killed while Python takes it off its list has ended, and stays on the list.
    return [one for one in threading.enumerate() if one.name == THREAD and one.is_alive()]


class Seen:
    """What one loop saw: a handle for every leaf of every batch."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.handles: list[list[Any]] = []

    def use(self, batch: Any) -> None:
        self.handles.append([self.backend.read(leaf) for leaf in leaves_of(batch)])

    def check(self) -> int:
        """Each batch in its place, each element right; how many there were."""
        for number, handles in enumerate(self.handles):
            for leaf, found in enumerate(self.backend.results(handles)):
                assert found == [number * 10 + leaf] * 2, (number, leaf, found)
        return len(self.handles)


def run(seed: int, backend: Backend) -> str:
    """One loop; the way it ended.

    Raises:
        AssertionError: it saw something that the plain loop would not have seen.
    """
    dice = random.Random(seed)
    backend.dice = dice
    loader, end = Loader(seed, backend), dice.choice(ENDS)
    at = dice.randint(0, max(0, loader.count - 1))
    depth = dice.randint(1, 4)
    batches = fusepass.prefetch(loader, "cuda", depth)
    seen, other = Seen(backend), Seen(backend)
    assert len(batches) == loader.count
    with backend.streams():
        caught = _loop(end, at, batches, seen, other, dice)
        total, second = seen.check(), other.check()
    whole = end in ("exhaust", "nested", "twice") or at >= loader.count
    if caught is not None:
        killed = end == "kill" and isinstance(caught, (SystemExit, errors.PrefetchDied))
        assert killed or (isinstance(caught, loader.fault or ()) and total == loader.count), caught
    elif whole and end != "kill":
        assert total == loader.count
        assert loader.fault is None or end in ("close", "drop", "generator")
    elif end != "kill":
        assert total == (0 if end == "drop" else at + 1)
    assert second == 0 or end == "twice"
    assert threads() == [] or end in ("kill", "drop")
    deadline = time.monotonic() + 5
    while threads() or loader.live:
        assert time.monotonic() < deadline, f"{end}: {threads()}, {loader.live} generators live"
        time.sleep(0.0005)
    assert loader.strangers == 0
    return end


def _loop(
    end: str, at: int, batches: Any, seen: Seen, other: Seen, dice: random.Random
) -> BaseException | None:
    """The loop; the exception that came out of it, if one did."""
    slow = dice.choice([0.0, 0.0, 0.001])
    try:
        if end == "drop":
            iter(batches)
            return None
        if end == "twice":
            for batch, again in zip(batches, batches, strict=True):
                seen.use(batch)
                other.use(again)
            return None
        if end == "nested":
            batches = fusepass.prefetch(batches, "cuda", dice.randint(1, 2))
        if end == "generator":
            _generator(batches, at, seen)
            return None
        found = iter(batches)
        for number, batch in enumerate(found):
            seen.use(batch)
            del batch
            time.sleep(dice.random() * slow)
            if number == at and end == "break":
                break
            if number == at and end == "close":
                found.close()
            if number == at and end == "raise":
                raise _Mine
            if number == at and end == "kill":
                for one in threads():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(one.ident), ctypes.py_object(SystemExit)
                    )
    except _Mine:
        pass
    except BaseException as error:  # noqa: BLE001 - what the loader raises is of any kind
        return error.with_traceback(None)
    return None


class _Mine(Exception):
    """The loop's own."""


def _generator(batches: Any, at: int, seen: Seen) -> None:
    def inner() -> Iterator[Any]:
        yield from batches

    using = inner()
    for _ in range(at + 1):
        if (batch := next(using, None)) is None:
            return
        seen.use(batch)
    using.close()
