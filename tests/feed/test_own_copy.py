"""Containers of a program's own classes: the loader's are not written to, whatever a copy shares."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import threading
import typing
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass import errors
from fusepass.feed.tree import moved, replaced

ONE, TWO = torch.arange(3.0), torch.arange(4)
META = torch.device("meta")


def minus(found: Tensor) -> Tensor:
    return -found


class Store(collections.abc.MutableMapping):
    """Its items are in a dict of its own, which ``copy.copy`` would share."""

    def __init__(self, **items: Any) -> None:
        self.inner = items

    def __getitem__(self, key: Any) -> Any:
        return self.inner[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.inner[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.inner[key]

    def __iter__(self) -> Any:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


class SharingStore(Store):
    """Copies itself, but not its items."""

    def __copy__(self) -> SharingStore:
        made = SharingStore()
        made.inner = self.inner
        return made


class Sequence(collections.abc.MutableSequence):
    def __init__(self, *items: Any) -> None:
        self.inner = Store(items=list(items))

    def __getitem__(self, at: Any) -> Any:
        return self.inner["items"][at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.inner["items"][at] = value

    def __delitem__(self, at: Any) -> None:
        del self.inner["items"][at]

    def __len__(self) -> int:
        return len(self.inner["items"])

    def insert(self, at: int, value: Any) -> None:
        self.inner["items"].insert(at, value)


class SelfCopy(dict):
    """Says that it is its own copy, as what never changes may."""

    def __copy__(self) -> SelfCopy:
        return self


class Pair(typing.NamedTuple):
    first: Any
    second: Any = 1


class NamedPair(Pair):
    """Has a ``__dict__``, which ``Pair`` has not."""


@pytest.mark.parametrize("kind", [Store, SharingStore, SelfCopy])
def test_not_written_to(kind: Any) -> None:
    before = kind(a=ONE, b=[1], c=[TWO])
    after = replaced(before, minus)
    assert type(after) is kind
    assert torch.equal(after["a"], -ONE)
    assert after["b"] == [1]
    assert torch.equal(after["c"][0], -TWO)
    assert before["a"] is ONE
    assert before["c"][0] is TWO
    assert moved(before, torch.device("cpu")) is before


class Locked(Store):
    """Cannot be copied with what it holds."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.lock = threading.Lock()


class Same(Store):
    """Cannot be copied at all."""

    def __copy__(self) -> Same:
        return self

    def __deepcopy__(self, memo: Any) -> Same:
        return self


@pytest.mark.parametrize("kind", [Locked, Same])
def test_one_that_cannot_be_copied(kind: Any) -> None:
    before = kind(a=ONE)
    with pytest.raises(errors.UnmovableBatch, match=kind.__name__):
        replaced(before, minus)
    assert before["a"] is ONE


def test_a_sequence_with_a_store_of_its_own() -> None:
    before = Sequence(ONE, 1)
    after = replaced(before, minus)
    assert (type(after), list(after)[1:]) == (Sequence, [1])
    assert torch.equal(after[0], -ONE)
    assert before[0] is ONE


def test_what_else_a_store_holds_is_not_copied_to_the_device() -> None:
    before = Store(a=ONE)
    before.mask = TWO
    after = moved(before, META)
    assert after["a"].device == META
    assert after.mask is TWO


def test_attributes_of_a_named_tuple() -> None:
    before = NamedPair(ONE, [1])
    before.name = "kept"
    after = replaced(before, minus)
    assert (type(after), after.name, after.second) == (NamedPair, "kept", [1])
    assert torch.equal(after.first, -ONE)


def test_what_a_cached_property_has_computed_is_moved() -> None:
    @dataclasses.dataclass
    class Image:
        pixels: Any

        @functools.cached_property
        def twice(self) -> Any:
            return 2 * self.pixels

    class Line(NamedPair):
        @functools.cached_property
        def twice(self) -> Any:
            return 2 * self.first

    image, line = Image(ONE), Line(ONE)
    assert image.twice.device.type == line.twice.device.type == "cpu"
    assert moved(image, META).twice.device == moved(line, META).twice.device == META
    assert image.twice.device.type == "cpu"
