"""A CUDA device made of Python, on which work that is not waited for has not happened yet.

Streams hold operations and run them when someone waits for them, or when the dice say so. A copy to
this device shows garbage until its stream has run it, and using a copy on a stream it was not
recorded on is an error: the memory could have been given to another tensor.
"""

from __future__ import annotations

import contextlib
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fusepass.prefetching import api, cuda, lookahead

GARBAGE = -77
DEVICE = torch.device("cuda", 0)


class Stream:
    """Operations in order; those before ``done`` have run."""

    def __init__(self, _: int = 0) -> None:
        self.operations: list[Callable[[], None]] = []
        self.done = 0

    def wait_event(self, event: Event) -> None:
        with LOCK:
            self.operations.append(event.synchronize)

    def wait_stream(self, other: Stream) -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)

    def run(self, to: int) -> None:
        with LOCK:
            while self.done < to:
                # Counted afterwards: a thread that is killed here has not run it, and none minds
                # being run twice.
                self.operations[self.done]()
                self.operations[self.done] = _nothing  # it holds tensors
                self.done += 1


def _nothing() -> None:
    """An operation that has run."""


class Event:
    """A place in a stream."""

    def __init__(self, *, blocking: bool = False) -> None:
        self.stream, self.at = HOME, 0

    def record(self, stream: Stream) -> None:
        with LOCK:
            self.stream, self.at = stream, len(stream.operations)

    def synchronize(self) -> None:
        self.stream.run(self.at)


LOCK = threading.RLock()
HOME = Stream()  # the default stream


class Current(threading.local):
    """The current stream of each thread."""

    stream = HOME


CURRENT = Current()


@contextlib.contextmanager
def stream(one: Stream) -> Iterator[None]:
    before, CURRENT.stream = CURRENT.stream, one
    try:
        yield
    finally:
        CURRENT.stream = before


class OnDevice(torch.Tensor):
    """A tensor of this device."""

    device = DEVICE
    recorded: set[Stream]

    def to(self, *_: Any) -> OnDevice:  # type: ignore[override]
        return self

    def record_stream(self, one: Stream) -> None:  # type: ignore[override]
        self.recorded.add(one)


class FakeCuda:
    """What a test does on the device; see ``runs.Backend``."""

    kind = "fake"
    largest = 300  # elements

    def __init__(self) -> None:
        # Not in a WeakSet: its callbacks run in the thread that a test kills.
        self.pinned: list[weakref.ref[Any]] = []
        self.copies: list[weakref.ref[Any]] = []
        self.locked: set[int] = set()
        self.dice = random.Random(0)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        block = tensor.clone()
        self.pinned.append(weakref.ref(block))
        return block

    def send(self, pinned: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert device == DEVICE
        assert CURRENT.stream is not HOME
        copy = torch.full_like(pinned, GARBAGE).as_subclass(OnDevice)
        copy.recorded = {CURRENT.stream}
        self.copies.append(weakref.ref(copy))
        with LOCK:
            CURRENT.stream.operations.append(
                lambda: copy.as_subclass(torch.Tensor).copy_(pinned)  # type: ignore[arg-type]
            )
        return copy

    def streams(self) -> contextlib.AbstractContextManager[None]:
        """The default stream, or another one."""
        return stream(self.dice.choice([HOME, Stream()]))

    def read(self, tensor: torch.Tensor) -> list[float]:
        """Smallest and largest element, once the stream has come to it; then garbage over them."""
        found: list[float] = []
        here = CURRENT.stream

        def run() -> None:
            assert here in getattr(tensor, "recorded", {here})
            plain = tensor.as_subclass(torch.Tensor)
            found[:] = found or (float(plain.min()), float(plain.max()))
            plain.fill_(GARBAGE)

        with LOCK:
            here.operations.append(run)
            if self.dice.random() < 0.3:
                here.run(self.dice.randint(here.done, len(here.operations)))
        return found

    def results(self, handles: list[list[float]]) -> list[list[float]]:
        CURRENT.stream.run(len(CURRENT.stream.operations))
        return handles

    def pinned_by_loader(self, count: int) -> torch.Tensor:
        """Memory from which a copy reads when it runs, not when it is asked for."""
        tensor = torch.empty(count)
        self.locked.add(tensor.data_ptr())
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.locked

    def left(self) -> tuple[int, int]:
        """Pinned blocks and copies that something still holds; nothing runs any more."""
        for one in [HOME, cuda.side_stream(DEVICE)]:
            one.run(len(one.operations))  # type: ignore[attr-defined]
            one.operations.clear()  # type: ignore[attr-defined]
            one.done = 0  # type: ignore[attr-defined]
        self.pinned = [one for one in self.pinned if one() is not None]
        self.copies = [one for one in self.copies if one() is not None]
        return len(self.pinned), len(self.copies)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """``prefetch(loader, "cuda")`` copies to this device."""
    fake = FakeCuda()
    side = Stream()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: CURRENT.stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _=None: HOME)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: fake.is_pinned(tensor))
    monkeypatch.setattr(lookahead, "LOOK", 0.02)
    monkeypatch.setattr(cuda, "side_stream", lambda _: side)
    monkeypatch.setattr(cuda, "_pin", fake.pin)
    monkeypatch.setattr(cuda, "_send", fake.send)
    monkeypatch.setattr(api, "_present", lambda device: DEVICE if device.type == "cuda" else device)
    yield fake
    fake.left()
