"""Which tensors share memory with one that is written, and whether they do in a later call.

What shares is seen in the addresses of the tensors themselves: arrays of NumPy, and what a program
sets as ``data``, may be in one place without one storage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch

from fusepass.torch_private.fx.graphs import known_equal

Span = tuple[int, int]
Pairs = frozenset[tuple[int, int]]


class OverlapCheck:
    """Pairs of tensors in one place, at least one of each pair written.

    Asked before each call of a compiled frame. Mostly the tensors are where they were, or only some
    are elsewhere; the rest is looked at again only if neither is so.

    Args:
        tensors: those that are written first.
        written: how many are written.
        whole: take all of the storage behind a tensor for the tensor, which ``as_strided`` reaches.
        varies: whether sizes or strides may be others in a later call.

    Attributes:
        pairs: positions, the smaller first.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], written: int, *, whole: bool, varies: bool
    ) -> None:
        self._written, self._whole = written, whole
        self._always = whole or varies
        self._now: list[Span] = []
        self._places: list[int] = []
        self._ordered: list[Span] = []
        self._note(self._spans(tensors), [tensor.data_ptr() for tensor in tensors])
        self.pairs = _overlapping(self._now, written)

    def holds(self, *tensors: torch.Tensor) -> bool:
        """Whether the same pairs share memory, and no others."""
        try:
            places = list(map(torch.Tensor.data_ptr, tensors))
            if self._always:
                return _overlapping(self._spans(tensors), self._written) == self.pairs
            if places == self._places:
                return True
            if not self.pairs and places[: self._written] == self._places[: self._written]:
                return self._is_apart_from_writes(places)
            spans = self._spans(tensors)
        except RuntimeError:  # a tensor without memory of its own
            return False
        if _overlapping(spans, self._written) != self.pairs:
            return False
        self._note(spans, places)
        return True

    def _is_apart_from_writes(self, places: list[int]) -> bool:
        """Whether what has moved, which is not written, is apart from all that is written."""
        for place, before, (start, end) in zip(places, self._places, self._now, strict=True):
            if place == before:
                continue
            end += place - start  # noqa: PLW2901
            at = bisect_left(self._ordered, (place,))
            if end > place and (
                (at and self._ordered[at - 1][1] > place)
                or (at < len(self._ordered) and self._ordered[at][0] < end)
            ):
                return False
        self._places = places
        self._now = [
            (place, place + end - start)
            for place, (start, end) in zip(places, self._now, strict=True)
        ]
        return True

    def _spans(self, tensors: Sequence[torch.Tensor]) -> list[Span]:
        return list(map(_storage_span if self._whole else _span, tensors))

    def _note(self, spans: list[Span], places: list[int]) -> None:
        self._now, self._places = spans, places
        self._ordered = sorted(span for span in spans[: self._written] if span[0] < span[1])


def _span(tensor: torch.Tensor) -> Span:
    """From the first to behind the last byte of a tensor; what lies between counts as its own."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _storage_span(tensor: torch.Tensor) -> Span:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _overlapping(spans: Sequence[Span], written: int) -> Pairs:
    found: set[tuple[int, int]] = set()
    reaching: list[int] = []
    for one in sorted(range(len(spans)), key=spans.__getitem__):
        start, end = spans[one]
        if start == end:
            continue
        reaching = [other for other in reaching if spans[other][1] > start]
        pairs = ((min(one, other), max(one, other)) for other in reaching)
        found.update(pair for pair in pairs if pair[0] < written)
        reaching.append(one)
    return frozenset(found)


def has_no_internal_overlap(value: torch.Tensor) -> bool:
    """Whether no two elements of a tensor are the same place in memory."""
    pairs = sorted(
        (stride, size)
        for stride, size in zip(value.stride(), value.shape, strict=True)
        if not known_equal(size, 1)
    )
    reach = 1
    for stride, size in pairs:
        if not known_equal(stride >= reach, True):
            return False
        reach = stride * size
    return True
