"""Dynamo: pending writes to objects of the program. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def side_effects_allowed(effects: Any, allowed: Callable[[Any], bool]) -> Iterator[None]:
    """Inside, writes to objects of outer scopes that ``allowed`` accepts are let through."""
    checked = effects.check_allowed_side_effect
    shadowed = effects.__dict__.get("check_allowed_side_effect")

    def check(item: Any) -> Any:
        return True if allowed(item) else checked(item)

    effects.check_allowed_side_effect = check
    try:
        yield
    finally:
        if shadowed is None:
            del effects.check_allowed_side_effect
        else:
            effects.check_allowed_side_effect = shadowed


def is_plain_object(item: Any) -> bool:
    """Whether a tracked value is an object or module of the program with attributes of its own."""
    kinds = ("UserDefinedObjectVariable", "UnspecializedNNModuleVariable")
    return type(item).__name__ in kinds


def buffer_container(item: Any) -> str | None:
    """``"dict"`` for the buffers of a module, ``"set"`` for the names not saved, else None."""
    source = getattr(item, "source", None)
    if source is None or type(item).__name__ not in ("ConstDictVariable", "SetVariable"):
        return None
    name = source.name if isinstance(source.name, str) else source.name()
    if name.endswith(("._buffers", "['_buffers']")):
        return "dict"
    if name.endswith(("._non_persistent_buffers_set", "['_non_persistent_buffers_set']")):
        return "set"
    return None


def held_items(container: Any) -> Any:
    """The items of a tracked dictionary or set, as they stand."""
    return container.items


def set_held_items(container: Any, items: Any) -> None:
    """Put the items of a tracked dictionary back, in place."""
    container.items.clear()
    container.items.update(items)


def bind_attribute(effects: Any, item: Any, name: Any, value: Any) -> None:
    """Bind an attribute of a tracked object, or a key of a tracked dictionary."""
    if isinstance(name, str):
        effects.store_attr(item, name, value)
    else:
        effects.mutation(item)
        item.items[name] = value
