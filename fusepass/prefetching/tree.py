"""A batch with its tensors replaced, whatever containers they are in.

Containers in which nothing is replaced stay the objects they are; others are made anew, of the same
class, and the loader's own are not written to. One object that occurs twice is one object
afterwards, too. Objects of unknown classes, NumPy arrays among them, stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence
from typing import Any

import torch

from fusepass.errors import UnmovableBatch
from fusepass.prefetching.container_copy import (
    cached_properties,
    keep_attributes,
    own_copy,
    with_items,
)
from fusepass.torch_private.fx.registered_types import registered_node

Leaf = Callable[[Any], Any]
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# `to` of these classes writes to the object itself; moving what the mapping holds does the same.
_ITEMS_ONLY = "transformers."
# A copy of these is as good as what pytree makes of their items, and keeps their attributes.
_COPIED = (dict, OrderedDict, defaultdict, deque)
_OPEN, _OPEN_AND_MET = object(), object()  # in place of what a container that is not done becomes


def replaced(value: Any, leaf: Leaf) -> Any:
    """``value`` with ``leaf(x)`` for each tensor ``x``, and each object that moves itself.

    These are the objects whose class has a method ``to`` that takes a device first.

    Raises:
        UnmovableBatch: a container holds what is replaced and cannot be made anew.
    """
    try:
        return _replace(value, leaf, {})
    except RecursionError as error:
        raise UnmovableBatch(type(value), "what is in it is nested too deeply") from error


def moved(value: Any, device: torch.device) -> Any:
    """``value`` with all tensors on ``device``, each by its own ``to``; waits for the copies."""
    return replaced(value, lambda found: found.to(device))


def _replace(value: Any, leaf: Leaf, seen: dict[int, tuple[Any, Any]]) -> Any:
    if type(value) in _PLAIN:
        return value
    if id(value) in seen:
        new = seen[id(value)][1]
        if new is _OPEN:  # it contains itself, which goes well as long as nothing in it changes
            seen[id(value)] = (value, _OPEN_AND_MET)
        return value if new is _OPEN or new is _OPEN_AND_MET else new
    if isinstance(value, torch.Tensor) or _moves_itself(type(value)):  # type: ignore[arg-type]
        new = leaf(value)
    else:
        seen[id(value)] = (value, _OPEN)
        new = _replace_inside(value, lambda child: _replace(child, leaf, seen))
        if new is not value and seen[id(value)][1] is _OPEN_AND_MET:
            raise UnmovableBatch(type(value), "it contains itself")
    seen[id(value)] = (value, new)  # with the value: an id means nothing once it is gone
    return new


@functools.lru_cache(maxsize=512)
def _moves_itself(kind: type) -> bool:
    """Whether objects of the class have a method ``to(device)``; a unit's ``to(unit)`` is none."""
    method = getattr(kind, "to", None)
    if not callable(method) or str(getattr(method, "__module__", "")).startswith(_ITEMS_ONLY):
        return False
    try:
        _, first, *_ = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return False
    return first.kind is first.VAR_POSITIONAL or (
        first.name == "device" and first.kind is not first.KEYWORD_ONLY
    )


def _replace_inside(value: Any, new: Leaf) -> Any:
    """A container with its children replaced; anything else as it is."""
    kind = type(value)
    if kind is tuple or kind is list:
        items = [new(child) for child in value]
        return kind(items) if _differ(items, value) else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _remade_tuple(value, [new(child) for child in value], kind._make)
    if kind not in _COPIED and (node := registered_node(value)) is not None:
        children, rebuild = node
        items = [new(child) for child in children]
        return _rebuild(value, lambda: rebuild(items)) if _differ(items, children) else value
    if isinstance(value, Mapping):
        return _replace_parts(value, dict(value.items()), new)
    if isinstance(value, MutableSequence):
        return _replace_parts(value, dict(enumerate(value)), new)
    if isinstance(value, tuple):  # a class of its own: torch.Size, torch.return_types
        return _remade_tuple(value, [new(child) for child in value], kind)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _replace_parts(value, {}, new)
    return value


def _remade_tuple(value: Any, items: list[Any], make: Callable[[list[Any]], Any]) -> Any:
    """A tuple of a class of its own with other items, or as it is where they are its own."""
    if not _differ(items, value):
        return value
    return _rebuild(value, lambda: keep_attributes(make(items), value))


def _replace_parts(value: Any, items: dict[Any, Any], new: Leaf) -> Any:
    """What has items, fields or both, with them replaced in a copy: it may hold more than those.

    ``__post_init__`` of a dataclass does not run again; it has done what it does.
    """
    fields = _fields(value)
    items_after, fields_after = _changes(items, new), _changes(fields, new)
    if not items_after and not fields_after:
        return value

    def make() -> Any:
        if not items_after:
            clone = own_copy(value, [*items.values(), *fields.values()])
        elif isinstance(value, (MutableMapping, MutableSequence)):
            clone = with_items(value, items, items_after)
        else:
            clone = keep_attributes(type(value)({**items, **items_after}), value)
        for name, after in fields_after.items():
            object.__setattr__(clone, name, after)  # also of a frozen one
        return clone

    return _rebuild(value, make)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, and what the cached properties of any class have computed."""
    names = cached_properties(value)
    if dataclasses.is_dataclass(value):
        names += [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    return {name: getattr(value, name) for name in names}


def _changes(parts: dict[Any, Any], new: Leaf) -> dict[Any, Any]:
    """Those parts that are replaced, as what they become."""
    after = {key: new(part) for key, part in parts.items()}
    return {key: after[key] for key, part in parts.items() if after[key] is not part}


def _rebuild(value: Any, make: Callable[[], Any]) -> Any:
    """What ``make`` makes of the container ``value``, or an error that names its class."""
    try:
        return make()
    except Exception as error:
        raise UnmovableBatch(type(value), f"{type(error).__name__}: {error}") from error


def _differ(items: Iterable[Any], others: Iterable[Any]) -> bool:
    return any(one is not other for one, other in zip(items, others, strict=True))
