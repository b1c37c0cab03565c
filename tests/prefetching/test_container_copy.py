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
from fusepass.prefetching.tree import moved, replaced

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
    """Holds its items where only a deep copy has others, and beside them what has no deep copy."""

    def __init__(self, **items: Any) -> None:
        super().__init__()
        self.inner = Store(**items)  # type: ignore[assignment]
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


class Slotted(collections.abc.MutableSequence):
    """Holds its items in a slot, once by a second name."""

    __slots__ = ("__items", "again", "empty")

    def __init__(self, *items: Any) -> None:
        self.__items = self.again = list(items)

    def __getitem__(self, at: Any) -> Any:
        return self.__items[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.again[at] = value

    def __delitem__(self, at: Any) -> None:
        del self.__items[at]

    def __len__(self) -> int:
        return len(self.__items)

    def insert(self, at: int, value: Any) -> None:
        self.__items.insert(at, value)


def test_what_else_a_container_holds_is_not_copied() -> None:
    """A dataset, a module or an array is not made anew for each batch; a lock could not be."""
    before = Store(a=ONE)
    held = {
        "module": torch.nn.Linear(2, 2),
        "array": TWO.numpy(),
        "lock": threading.Lock(),
        "later": (n for n in range(3)),
        "one": object(),
    }
    vars(before).update(held, dataset=[held["one"]])
    after = replaced(before, minus)
    assert torch.equal(after["a"], -ONE)
    assert before["a"] is ONE
    assert all(getattr(after, name) is one for name, one in held.items())
    assert after.dataset[0] is held["one"]


def test_items_in_a_slot() -> None:
    before = Slotted(ONE, held := object())
    after = replaced(before, minus)
    assert torch.equal(after[0], -ONE)
    assert after[1] is held
    assert before[0] is ONE


def test_a_copy_that_shares_its_items_and_turns_one_down() -> None:
    """What was written to the original by then is taken back."""

    class Picky(SharingStore):
        def __setitem__(self, key: Any, value: Any) -> None:
            if key == "b" and value is not TWO:
                raise ValueError(key)
            super().__setitem__(key, value)

        def __copy__(self) -> Picky:
            made = Picky()
            made.inner = self.inner
            return made

    before = Picky(a=ONE, b=TWO)
    with pytest.raises(errors.UnmovableBatch, match="ValueError"):
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
