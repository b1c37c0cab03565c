"""A batch with its tensors replaced, whatever containers they are in.

Containers in which nothing is replaced stay the objects they are; others are made anew, of the same
class, and the loader's own are not written to. One object that occurs twice is one object
afterwards, too. Objects of unknown classes, NumPy arrays among them, stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence
from typing import Any

import torch

from fusepass.errors import UnmovableBatch
from fusepass.torch_private import registered_node

Leaf = Callable[[Any], Any]
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# `to` of these classes writes to the object itself; moving what the mapping holds does the same.
_ITEMS_ONLY = "transformers."


def replaced(value: Any, leaf: Leaf) -> Any:
    """``value`` with ``leaf(x)`` for each tensor ``x``, and each object that moves itself.

    These are the objects whose class has a method ``to`` that takes a device first.

    Raises:
        UnmovableBatch: a container holds what is replaced and cannot be made anew.
    """
    return _replace(value, leaf, {})


def moved(value: Any, device: torch.device) -> Any:
    """``value`` with all tensors on ``device``, each by its own ``to``; waits for the copies."""
    return replaced(value, lambda found: found.to(device))


def _replace(value: Any, leaf: Leaf, seen: dict[int, tuple[Any, Any]]) -> Any:
    if type(value) in _PLAIN:
        return value
    if id(value) not in seen:
        if isinstance(value, torch.Tensor) or _moves_itself(type(value)):  # type: ignore[arg-type]
            new = leaf(value)
        else:
            new = _replace_inside(value, lambda child: _replace(child, leaf, seen))
        seen[id(value)] = (value, new)  # with the value: an id means nothing once it is gone
    return seen[id(value)][1]


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
        items = [new(child) for child in value]
        return _made(value, lambda: kind._make(items)) if _differ(items, value) else value
    if kind is not dict and (node := registered_node(value)) is not None:
        children, rebuild = node
        items = [new(child) for child in children]
        return _made(value, lambda: rebuild(items)) if _differ(items, children) else value
    if isinstance(value, Mapping):
        return _replace_items(value, list(value.items()), new)
    if isinstance(value, MutableSequence):
        return _replace_items(value, list(enumerate(value)), new)
    if isinstance(value, tuple):  # a class of its own: torch.Size, torch.return_types
        items = [new(child) for child in value]
        return _made(value, lambda: kind(items)) if _differ(items, value) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _replace_fields(value, new)
    return value


def _replace_items(value: Any, pairs: list[tuple[Any, Any]], new: Leaf) -> Any:
    """A mapping, or a list, with items replaced in a shallow copy: it may hold more than items."""
    items = [(key, child, new(child)) for key, child in pairs]
    changed = {key: after for key, before, after in items if after is not before}
    if not changed:
        return value

    def make() -> Any:
        if not isinstance(value, (MutableMapping, MutableSequence)):
            return type(value)({key: after for key, _, after in items})
        clone = copy.copy(value)
        for key, after in changed.items():
            clone[key] = after
        return clone

    return _made(value, make)


def _replace_fields(value: Any, new: Leaf) -> Any:
    """A dataclass with fields replaced in a shallow copy: ``__post_init__`` has run already."""
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    before = [getattr(value, name) for name in names]
    after = [new(child) for child in before]
    if not _differ(after, before):
        return value

    def make() -> Any:
        clone = copy.copy(value)
        for name, one, other in zip(names, before, after, strict=True):
            if other is not one:
                object.__setattr__(clone, name, other)  # also of a frozen one
        return clone

    return _made(value, make)


def _made(value: Any, make: Callable[[], Any]) -> Any:
    """What ``make`` makes of the container ``value``, or an error that names its class."""
    try:
        return make()
    except Exception as error:
        raise UnmovableBatch(type(value), f"{type(error).__name__}: {error}") from error


def _differ(items: Iterable[Any], others: Iterable[Any]) -> bool:
    return any(one is not other for one, other in zip(items, others, strict=True))
