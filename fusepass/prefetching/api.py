"""``fusepass.prefetch``: batches that are on the device by the time the model asks for them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, Generic, SupportsIndex, TypeVar

import torch

from fusepass.errors import NotIterable, PrefetchDepth, PrefetchDevice
from fusepass.prefetching.cuda import Copier
from fusepass.prefetching.lookahead import END, Lookahead
from fusepass.prefetching.thread_context import surroundings
from fusepass.prefetching.tree import moved

Batch = TypeVar("Batch")


def prefetch(
    loader: Iterable[Batch], device: torch.device | str | int, depth: int = 2
) -> Prefetch[Batch]:
    """The batches of ``loader``, on ``device``, made and copied while the model works.

    ::

        for images, labels in fusepass.prefetch(loader, "cuda"):
            loss = step(images, labels)

    takes the place of ``images.to("cuda")`` at the head of the loop. On CUDA a thread advances the
    loader and copies its batches through pinned memory, on a stream of its own; the loop's stream
    waits for the copies, the host does not. The batches are those of the plain loop, in its order;
    an exception of the loader is raised where the plain loop would raise it. Read docs/prefetch.md
    for what a loader in a thread of its own may not do.

    On any other device this is the plain loop, without a thread: tensors are moved by ``to``, and
    a batch that is there already is the loader's own object.

    Args:
        loader: any iterable of batches: tensors, and tuples, lists, dicts, named tuples,
            dataclasses, mappings such as transformers' BatchEncoding, and classes registered with
            pytree that hold tensors, nested in any way. Everything else in a batch stays as it is.
        device: for the tensors. ``"cuda"`` is the current device when iteration starts.
        depth: batches on the device ahead of the one in use, at least 1. The loader is at most
            ``depth + 1`` batches ahead.

    Returns:
        An iterable, as often as the loader is one, with the loader's ``len``. Its iterators have
        ``close()``, which ends the thread at once; so does dropping them.

    Raises:
        NotIterable, PrefetchDepth, PrefetchDevice: an argument cannot be used. That the device is
            not there is found when iteration starts.
    """
    if not (hasattr(type(loader), "__iter__") or hasattr(type(loader), "__getitem__")):
        raise NotIterable(loader)
    if getattr(loader, "ndim", None) == 0:  # a tensor or array: it has __iter__, and no items
        raise NotIterable(loader)
    return Prefetch(loader, _parsed(device), _checked(depth))


class Prefetch(Generic[Batch]):
    """What :func:`prefetch` returns.

    Attributes:
        loader: the loader.
        device: as given; an index may be missing.
        depth: batches ahead, at most.
    """

    _running: Lookahead | None = None  # of a loader that can be iterated over once

    def __init__(self, loader: Iterable[Batch], device: torch.device, depth: int) -> None:
        self.loader, self.device, self.depth = loader, device, depth

    def __iter__(self) -> Iterator[Batch]:
        device = _present(self.device)
        if device.type != "cuda":
            return _in_place(iter(self.loader), device)
        if not isinstance(self.loader, Iterator):
            return self._ahead(device)
        # A second loop over an iterator goes on where the first one stopped, and so must we: some
        # of its items are here already.
        if self._running is None or self._running.over:
            self._running = self._ahead(device)
        return self._running

    def _ahead(self, device: torch.device) -> Lookahead:
        # iter() here and not in the thread: a DataLoader starts its worker processes in it, and
        # they are best forked from the thread, and at the time, of the plain loop.
        iterator = iter(self.loader)
        copier = Copier(device, self.depth)
        return Lookahead(iterator, copier.stage, copier.hand, self.depth, surroundings())

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type] # raises as len(loader) does

    def __bool__(self) -> bool:
        return bool(self.loader)  # not by __len__, which a loader need not have

    def __repr__(self) -> str:
        return f"fusepass.prefetch({self.loader!r}, {str(self.device)!r}, depth={self.depth})"


def _in_place(iterator: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """The plain loop."""
    while (batch := next(iterator, END)) is not END:
        yield moved(batch, device)


def _parsed(device: torch.device | str | int) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise PrefetchDevice(device, str(error)) from None


def _present(device: torch.device) -> torch.device:
    """A CUDA device with its index, or any other device as it is."""
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise PrefetchDevice(device, f"torch {torch.__version__} sees no CUDA device")
    if device == torch.device("cuda"):
        return torch.device("cuda", torch.cuda.current_device())
    count = torch.cuda.device_count()
    if device.index >= count:
        raise PrefetchDevice(device, f"there are {count} CUDA devices, numbered from 0")
    return device


def _checked(depth: object) -> int:
    if isinstance(depth, bool) or not isinstance(depth, SupportsIndex):
        raise PrefetchDepth(depth)
    if (number := operator.index(depth)) < 1:
        raise PrefetchDepth(depth)
    return number
