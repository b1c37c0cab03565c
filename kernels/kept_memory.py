"""Memory for results that nothing reads once a call of compiled code is done, kept for the next.

To allocate a tensor costs the host about a microsecond, and a network has a hundred weights that
are scaled in each call. What is kept is of one thread and one stream: there, calls come one after
the other, so what is written anew nothing reads any more.

All together may hold a share of a device's memory; what would be beyond is allocated in each call.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SHARE = 256  # of the device's memory, at most one in so many bytes
_ALIGNED = 256  # bytes
_held: Counter[int] = Counter()  # bytes by device
_lock = threading.Lock()

Kind = tuple[str, Sequence[int], Sequence[int]]
"""Dtype, as torch names it, shape and strides of a tensor without gaps."""


@dataclass(eq=False)
class Kept:
    """Results, and what their owner knows of its last call."""

    results: list[Tensor]
    last: Any = None
    launches: list[Any] = field(default_factory=list)


class KeptMemory(threading.local):
    """Of one function: by stream, in each thread anew."""

    def __init__(self) -> None:
        self.by_stream: dict[int, Kept] = {}

    def on(self, stream: int, kinds: Sequence[Kind], device: torch.device) -> Kept | None:
        """What is kept for a stream, allocated by the first call; None if there is no room."""
        kept = self.by_stream.get(stream)
        if kept is None:
            kept = _allocated(kinds, device)
            if kept is not None:
                self.by_stream[stream] = kept
        return kept


def _allocated(kinds: Sequence[Kind], device: torch.device) -> Kept | None:
    starts, total = [], 0
    for dtype, shape, _ in kinds:
        starts.append(total)
        total += -(-_bytes(dtype, shape) // _ALIGNED) * _ALIGNED
    where = device.index or 0
    with _lock:
        if _held[where] + total > _bound(device):
            return None
        _held[where] += total
    try:
        with torch.inference_mode(False), torch.no_grad():
            whole = torch.empty(total, dtype=torch.uint8, device=device)
            results = [
                whole[start : start + _bytes(dtype, shape)]
                .view(getattr(torch, dtype))
                .as_strided(shape, strides)
                for start, (dtype, shape, strides) in zip(starts, kinds, strict=True)
            ]
    except torch.OutOfMemoryError:
        _given_back(where, total)
        return None
    kept = Kept(results)
    weakref.finalize(kept, _given_back, where, total)
    return kept


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    kind: torch.dtype = getattr(torch, dtype)
    return int(torch.Size(shape).numel()) * kind.itemsize


def _bound(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory) // SHARE


def _given_back(where: int, total: int) -> None:
    with _lock:
        _held[where] -= total
