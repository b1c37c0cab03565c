"""Copies to a CUDA device: staged in pinned memory, on a stream of their own.

For each batch, in the thread that reads ahead: every tensor is copied into pinned memory, and from
there to the device on the side stream, without waiting. For each batch that is handed over, in the
thread of the loop: its current stream is made to wait for the copies, and the copies' memory is
marked as used by that stream.

Three decisions:

Staging memory is torch's own: ``empty_like(pin_memory=True)`` takes a block from its caching host
allocator, ``to(non_blocking=True)`` notes on the block the event that ends the copy, and the block
is given out again only after it. A ring of buffers kept here would do the same work a second time,
per size and dtype, and would have to be given back at every way out of a loop.

The device runs at most ``depth`` batches behind the host. ``record_stream`` keeps a block from
being used again until the work queued at its release is done; a loop that never waits for the
device would queue many steps and hold the batches of all of them. So batch ``k`` is copied once
the device is done with what was queued before batch ``k - depth`` was handed over: in use are the
batch of the running step and ``depth`` more.

The loader goes on only after its tensors have been read, as after ``.to(device)`` in a plain loop:
it may write its next batch into the same memory. What cannot be read ahead (:func:`_ahead`) is
moved when it is handed over, and the loader waits until then.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.errors import PinnedMemoryFull
from fusepass.prefetching.lookahead import Staged
from fusepass.prefetching.tree import moved, replaced


@dataclass(frozen=True)
class Copied:
    """A batch whose tensors are on their way to the device.

    Attributes:
        batch: with the copies in it.
        copies: made on the side stream.
        passed: tensors that were on the device already.
        ready: the event behind the last copy; None if there is none.
        late: something in it is moved when it is handed over.
    """

    batch: Any
    copies: list[torch.Tensor]
    passed: list[torch.Tensor]
    ready: torch.cuda.Event | None
    late: bool


class Copier:
    """Copies for one loop over batches.

    Made in the thread of the loop. :meth:`stage` is for the thread that reads ahead, :meth:`hand`
    for that of the loop; for each batch one is called after the other, and ``stage`` of batch k
    after ``hand`` of batch k - depth.

    Args:
        device: a CUDA device, with its index.
        depth: batches on the device that have not been handed over, at most.
    """

    def __init__(self, device: torch.device, depth: int) -> None:
        self._device, self._depth = device, depth
        self._side = side_stream(device)
        self._home = torch.cuda.current_stream(device)  # the loader runs on it, too
        self._staged = 0
        self._before: deque[torch.cuda.Event] = deque()  # what was queued before each hand-over

    def stage(self, batch: Any) -> Staged:
        """Start the copies of a batch, once the device is done with an earlier one."""
        if self._staged >= self._depth:
            self._before.popleft().synchronize()
        self._staged += 1
        try:
            copied = self._started(batch)
        except torch.OutOfMemoryError:
            # There is no room for a batch more; for the one in use there is, in the plain loop.
            copied = Copied(batch, [], [], None, late=True)
        return Staged(copied, settled=not copied.late)

    def _started(self, batch: Any) -> Copied:
        copies: list[torch.Tensor] = []
        passed: list[torch.Tensor] = []
        late = from_pinned = False

        def start(found: Any) -> Any:
            nonlocal late, from_pinned
            if not isinstance(found, torch.Tensor):
                late = True
            elif found.device == self._device:
                passed.append(found)
            elif not _ahead(found):
                late = True
            else:
                pinned = found.is_contiguous() and found.is_pinned()
                from_pinned |= pinned
                copies.append(_send(found if pinned else _pin(found), self._device))
                return copies[-1]
            return found

        ready = None
        with torch.cuda.stream(self._side):
            batch = replaced(batch, start)
            if copies:
                ready = torch.cuda.Event(blocking=True)
                ready.record(self._side)
        if ready is not None and from_pinned:
            ready.synchronize()  # the memory is the loader's, and still being read
        return Copied(batch, copies, passed, ready, late)

    def hand(self, copied: Copied) -> Any:
        """The batch, for the current stream of the calling thread."""
        stream = torch.cuda.current_stream(self._device)
        before = torch.cuda.Event(blocking=True)
        before.record(stream)
        self._before.append(before)
        if copied.ready is not None:
            stream.wait_event(copied.ready)
        if (copied.passed or copied.late) and stream != self._home:
            stream.wait_stream(self._home)  # the loader may have worked on them there
        for tensor in copied.copies if stream == self._home else copied.copies + copied.passed:
            tensor.record_stream(stream)
        return moved(copied.batch, self._device) if copied.late else copied.batch


def _ahead(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one that a plain copy moves: strided, on the CPU, without a gradient.

    Others are left to ``to``, which knows what their result is (subclasses, sparse and quantized
    tensors, gradients, lazily conjugated ones), or need no copy.
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_quantized)
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    """A pinned copy with the strides that ``to`` gives: no more memory than the elements need.

    The tensor itself where no memory can be pinned: its copy is slower, and read from it at once.
    """
    try:
        block = torch.empty_like(tensor, device="cpu", pin_memory=True)
    except RuntimeError as error:
        warnings.warn(PinnedMemoryFull(tensor.nbytes, str(error)), stacklevel=2)
        return tensor
    return block.copy_(tensor)


def _send(pinned: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on the device, by the current stream; torch keeps the block until it is done."""
    return pinned.to(device, non_blocking=True)


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for copies to a device: one for all loops, since memory is cached per stream."""
    return _side_stream(device.index)


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)
