"""Find the tracked values that others hold. Runs on torch 2.11 to 2.15."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Iterator
from typing import Any

from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    PythonModuleVariable,
    TensorVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable

# Most values of a frame. They hold no other.
_LEAVES = (
    BuiltinVariable,
    ConstantVariable,
    PythonModuleVariable,
    SymNodeVariable,
    TensorVariable,
)
_HOLDERS = (list, tuple, dict, collections.OrderedDict)


def values_inside(roots: Iterable[Any]) -> list[Any]:
    """All tracked values in some, and these: each once, the outer ones first.

    As ``VariableTracker.visit``, which looks into tensors, too, and takes ten times as long: this
    is asked at each arm.
    """
    seen: dict[int, Any] = {}  # holds the values, so that no other gets the identity of one
    found: list[Any] = []
    todo: list[Iterator[Any]] = [iter(roots)]
    while todo:
        for value in todo[-1]:
            inside = _look_into(value, seen, found)
            if inside is not None:
                todo.append(inside)
                break
        else:
            todo.pop()
    return found


def _look_into(value: Any, seen: dict[int, Any], found: list[Any]) -> Iterator[Any] | None:
    tracked = _is_tracked(value.__class__)
    if (not tracked and type(value) not in _HOLDERS) or id(value) in seen:
        return None
    seen[id(value)] = value
    if not tracked:
        return iter(value.values() if isinstance(value, dict) else value)
    value = value.unwrap()
    found.append(value)
    if issubclass(type(value), _LEAVES):
        return None
    return iter([one for k, one in vars(value).items() if k not in value._nonvar_fields])


@functools.cache
def _is_tracked(kind: type) -> bool:  # isinstance() runs Python code of Dynamo's for each value
    return issubclass(kind, VariableTracker)
