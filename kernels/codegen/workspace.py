"""Memory for results that nothing reads once a call of compiled code is done, kept for the next.

To allocate a tensor costs the host about a microsecond, and a network has a hundred weights that
are scaled in each call. What is kept is of one place in compiled code, one thread and one stream:
there, calls come one after the other, so what is written anew nothing reads any more.

All together may hold a share of a device's memory. Where more is wanted, what was allocated first
goes; a call that is under way still has its tensors.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SHARE = 256  # of the device's memory, at most one in so many bytes
_ALIGNED = 256  # bytes

Kind = tuple[str, Sequence[int], Sequence[int]]
"""Dtype, as torch names it, shape and strides of a tensor without gaps."""


@dataclass(eq=False)
class CachedResults:
    """Results, and what their owner knows of its last call."""

    results: list[Tensor]
    total: int
    device: torch.device
    last: Any = None


_all: OrderedDict[int, CachedResults] = OrderedDict()  # the only ones that hold on to them
_lock = threading.RLock()


class ResultCache(threading.local):
    """Memory kept for one place in compiled code: by stream, in each thread anew.

    Args:
        kinds: of the results.
        device: a CUDA device, with its index.
    """

    def __init__(self, kinds: Sequence[Kind], device: torch.device) -> None:
        self._kinds, self._device = kinds, device
        self._by_stream: dict[int, weakref.ref[CachedResults]] = {}
        self._starts, self._total = [], 0
        for dtype, shape, _ in kinds:
            self._starts.append(self._total)
            self._total += -(-_bytes(dtype, shape) // _ALIGNED) * _ALIGNED
        self._refused = False

    def for_stream(self, stream: int) -> CachedResults | None:
        """What is kept for a stream, allocated by the first call; None if there is no room."""
        if self._refused:
            return None
        reference = self._by_stream.get(stream)
        kept = None if reference is None else reference()
        if kept is None:
            kept = self._allocate()
            if kept is None:
                self._refused = True
            else:
                self._by_stream[stream] = weakref.ref(kept)
        return kept

    def _allocate(self) -> CachedResults | None:
        bound = _max_bytes(self._device)
        if self._total > bound:
            return None
        with _lock:
            _evict(bound - self._total, self._device)
            try:
                with torch.inference_mode(False), torch.no_grad():
                    whole = torch.empty(self._total, dtype=torch.uint8, device=self._device)
                    results = [
                        whole[start : start + _bytes(dtype, shape)]
                        .view(getattr(torch, dtype))
                        .as_strided(shape, strides)
                        for start, (dtype, shape, strides) in zip(
                            self._starts, self._kinds, strict=True
                        )
                    ]
            except torch.OutOfMemoryError:
                return None
            kept = CachedResults(results, self._total, self._device)
            _all[id(kept)] = kept
        return kept


def _evict(bound: int, device: torch.device) -> None:
    """Let go of what was allocated first, until no more than ``bound`` bytes are kept."""
    there = [(key, one) for key, one in _all.items() if one.device == device]
    held = sum(one.total for _, one in there)
    for key, one in there:
        if held <= bound:
            return
        del _all[key]
        held -= one.total


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    kind: torch.dtype = getattr(torch, dtype)
    return int(torch.Size(shape).numel()) * kind.itemsize


def _max_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory) // SHARE
