"""A container copied so that writing to the copy leaves the original as it is.

``copy.copy`` alone does not promise that: of an object that keeps its items in a dict of its own it
makes a second object around the same dict, and a class may say that it is its own copy.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

_COPY_THEIR_ITEMS = (dict, list, deque, UserDict, UserList)


def with_items(value: Any, before: dict[Any, Any], after: dict[Any, Any]) -> Any:
    """A copy of a mapping or list with ``after`` written to it; its items there were ``before``.

    Raises TypeError if whatever is written to a copy is written to the original, too.
    """
    for clone in _copies(value, before.values()):
        try:
            for key, item in after.items():
                clone[key] = item
        finally:
            shared = any(value[key] is item for key, item in after.items())
            if shared:  # the copy's items are those of the original after all
                for key in after:
                    value[key] = before[key]
        if not shared:
            return clone
    raise TypeError("its copies share their items with it")


def own_copy(value: Any, held: Iterable[Any]) -> Any:
    """A copy to set attributes of, with the objects ``held`` in it, not copies of them.

    Raises TypeError if the class makes no copies but returns the object.
    """
    for clone in _copies(value, held):
        return clone
    raise TypeError("its copy is the object itself")


def keep_attributes(clone: Any, value: Any) -> Any:
    """``clone``, with the attributes ``value`` was given that making it anew has left out.

    What a cached property holds is left out: it was computed from the items there were.
    """
    given, there = getattr(value, "__dict__", None), getattr(clone, "__dict__", None)
    if isinstance(given, dict) and isinstance(there, dict):
        for name in given.keys() - set(cached_properties(value)):
            there.setdefault(name, given[name])
    return clone


def cached_properties(value: Any) -> list[str]:
    """Names of the cached properties that have been computed."""
    kind, given = type(value), getattr(value, "__dict__", ())
    return [n for n in given if isinstance(getattr(kind, n, None), functools.cached_property)]


def _copies(value: Any, held: Iterable[Any]) -> Iterator[Any]:
    """Copies, each with more of its insides copied than the one before; the least that does is it.

    What else an object holds (its dataset, a module, a lock) is nothing to copy for each batch, if
    it can be copied at all.
    """
    kind = type(value)
    insides = not hasattr(kind, "__setitem__")  # none: only attributes are written
    if insides or isinstance(value, _COPY_THEIR_ITEMS) or hasattr(kind, "__copy__"):
        clone = copy.copy(value)
        if clone is not value:
            yield keep_attributes(clone, value)
    try:
        clone = copy.copy(value)
    except Exception:  # noqa: BLE001 - the class may know only how to make a deep one
        clone = value
    if clone is not value and _part_from(clone, value):
        yield keep_attributes(clone, value)
    memo = {id(one): one for one in held}  # what deepcopy takes for copied already
    attributes = getattr(value, "__dict__", {}).values()
    memo.update({id(one): one for one in attributes if isinstance(one, torch.Tensor)})
    clone = copy.deepcopy(value, memo)
    if clone is not value:
        yield keep_attributes(clone, value)


def _part_from(clone: Any, value: Any) -> bool:
    """Give a shallow copy dicts and lists of its own as attributes; False where it has none."""
    own: dict[int, Any] = {}  # by the shared one: what two attributes share stays one

    def copied(one: Any) -> Any:
        if id(one) not in own:
            own[id(one)] = copy.copy(one)
        return own[id(one)]

    there, given = getattr(clone, "__dict__", {}), getattr(value, "__dict__", {})
    for name, one in [*there.items()]:
        if isinstance(one, _COPY_THEIR_ITEMS) and one is given.get(name):
            there[name] = copied(one)
    members = [m for kind in type(value).__mro__ for m in vars(kind).values()]
    for slot in filter(inspect.ismemberdescriptor, members):
        one = _in_slot(slot, value)
        if isinstance(one, _COPY_THEIR_ITEMS) and one is _in_slot(slot, clone):
            slot.__set__(clone, copied(one))
    return bool(own)


def _in_slot(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # nothing has been written there
        return None
