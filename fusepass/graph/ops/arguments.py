"""What an argument of a recorded call is: tensor, number or size; and when two are one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

_NUMBERS = (int, float, complex, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class SymbolicSize:
    """A symbolic number as an argument of a recorded call (FX holds no raw ``SymInt``)."""

    size: torch.SymInt | torch.SymFloat


def as_hashable(value: Any) -> Any:
    """FX's immutable lists and dicts as tuples, so that values compare and hash."""
    if isinstance(value, slice):
        return ("slice", *map(as_hashable, (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return tuple(map(as_hashable, value))
    return tuple(value) if isinstance(value, torch.Size) else value


def is_number(value: Any) -> bool:
    """Whether an argument is a number, symbolic ones and nodes that hold one included."""
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value", value.meta.get("val"))
    return isinstance(value, (*_NUMBERS, SymbolicSize))


def is_tensor(value: Any) -> bool:
    """Whether an argument is a tensor, or a node that may hold one."""
    if isinstance(value, fx.Node):
        held = value.meta.get("example_value", value.meta.get("val"))
        return held is None or isinstance(held, torch.Tensor)
    return isinstance(value, torch.Tensor)


def is_default(value: Any, default: Any) -> bool:
    """Whether an argument is what it would be if it were not given."""
    if isinstance(value, tuple) and isinstance(default, tuple):
        return len(value) == len(default) and all(map(is_default, value, default))
    return value is default or (
        type(value) is type(default) and isinstance(value, (int, float, str)) and value == default
    )
