"""Recognise pending writes of attributes that leave an object as it was: set, and set back.

Dynamo writes attributes after the graph. An exception that is raised after the graph comes before
these writes; in eager it comes behind them. It makes no difference if each attribute gets the
constant that it held before the call, which a guard asks for in later calls. Run on torch 2.11 to
2.15.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch._dynamo.variables.base import AttributeMutationExisting
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from fusepass.torch_private.dynamo.guards import guard_on

_KEY = "fusepass_unchanged"  # attribute of an output graph: what is guarded
_CONSTANTS = (types.NoneType, bool)  # of which there is one object each


@dataclass(frozen=True)
class _Attributes:
    """The condition that some attributes of an object hold what they held."""

    owner: Any
    held: tuple[tuple[str, Any], ...]
    text = "attributes that are set and set back hold what they held"

    def holds(self) -> bool:
        now = vars(self.owner)
        return all(name in now and now[name] is value for name, value in self.held)


def is_set_back(translator: Any, changed: Any) -> bool:
    """Whether pending writes leave an object as it was; if so, a guard asks that in each call."""
    held = _written(translator.output.side_effects, changed)
    if held is None:
        return False
    found = _Attributes(changed.value, tuple(held.items()))
    if not found.holds():
        return False
    guarded = vars(translator.output).setdefault(_KEY, set())
    key = (id(changed.value), frozenset(held.items()))
    if key not in guarded:
        guarded.add(key)
        guard_on(translator, _KEY, found)
    return True


def _written(effects: Any, changed: Any) -> dict[str, Any] | None:
    """What plain attributes of an object are to hold, if all of it are such constants."""
    plain = type(changed) is UserDefinedObjectVariable and _is_plain(changed.value)
    if not plain or type(changed.mutation_type) is not AttributeMutationExisting:
        return None
    held: dict[str, Any] = {}
    for name, value in effects.store_attr_mutations.get(changed, {}).items():
        is_slot = hasattr(getattr(type(changed.value), name, None), "__set__")
        if is_slot or not value.is_python_constant():
            return None
        held[name] = value.as_python_constant()
    return held if held and all(type(one) in _CONSTANTS for one in held.values()) else None


def _is_plain(owner: Any) -> bool:
    """Whether attributes of an object are entries of its ``__dict__``, and no more than that."""
    special: list[Any] = [type(owner).__setattr__, type(owner).__getattribute__]
    own = special == [object.__setattr__, object.__getattribute__]
    return own and not isinstance(owner, (nn.Module, type)) and hasattr(owner, "__dict__")
