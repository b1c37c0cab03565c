"""Find the memory of tensors, or the object, that a name, attribute or stack entry may hold."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

NULL: Any = object()  # what the bytecode of a call pushes beside a function

_MOST_ELEMENTS = 256
_CONTAINERS = (list, tuple, dict, set, torch.nn.ModuleList, torch.nn.ModuleDict)
_VIEWS = frozenset("T mT H mH data real imag".split())


class EACH(tuple[Any, ...]):
    """Several objects, any of which may be meant."""


@dataclass(frozen=True, eq=False)
class Held:
    """The value that a name, an attribute or a stack entry may hold.

    Attributes:
        memory: the memory that tensors in the value may lie in.
        container: whether the value holds tensors and is none itself: to store an element then
            writes no tensor.
        real: the object itself, if it is known.
        owner, name: if the value was loaded as an attribute, its owner and its name.
    """

    memory: frozenset[int] = frozenset()
    container: bool = False
    real: Any = None
    owner: Held | None = None
    name: str = ""

    def __or__(self, other: Held) -> Held:
        if self == other:
            return self
        same = _identity(self.real) == _identity(other.real)
        owners = self.owner is not None and other.owner is not None
        return Held(
            self.memory | other.memory,
            self.container and other.container,
            self.real if same else None,
            self.owner | other.owner if owners else None,  # type: ignore[operator]
            self.name if self.name == other.name else "",
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        owner = None if self.owner is None else self.owner._key()
        return self.memory, self.container, _identity(self.real), owner, self.name


def _identity(value: Any) -> Any:
    return tuple(map(id, value)) if isinstance(value, EACH) else id(value)


NOTHING = Held()


def either(held: Iterable[Held]) -> Held:
    """Any of several values."""
    several = list(held)
    memory = frozenset[int]().union(*(one.memory for one in several))
    return Held(memory, container=any(one.container for one in several))


@dataclass
class Values:
    """Look-up of names and attributes, and a record of what code stores.

    Attributes:
        memory_of: the memory of a tensor, as the graph knows it.
        pending: what an object gets as an attribute behind the graph, if it does.
    """

    memory_of: Callable[[torch.Tensor], frozenset[int]]
    pending: Callable[[Any, str], Held | None]
    _stored: dict[str, frozenset[int]] = field(default_factory=dict)

    def of(self, value: Any) -> Held:
        """A real object."""
        if isinstance(value, torch.Tensor):
            return Held(self.memory_of(value))
        if isinstance(value, _CONTAINERS):
            tensors = (one for one in _elements(value) if isinstance(one, torch.Tensor))
            memory = frozenset[int]().union(*map(self.memory_of, tensors))
            return Held(memory, container=True, real=value)
        return Held(real=value)

    def of_cell(self, cell: types.CellType) -> Held:
        """The value of a variable that a function has from the one around it."""
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # not bound yet
            return NOTHING

    def named(self, names: Mapping[str, Any], name: str) -> Held:
        """A global, or what is built in."""
        return self.of(names.get(name, getattr(builtins, name, None)))

    def put(self, where: str, value: Held) -> None:
        """Note that a value was stored as an attribute of this name, or in a container."""
        self._stored[where] = self._stored.get(where, frozenset()) | value.memory

    def known_stores(self) -> int:
        """How much was noted so far."""
        return sum(map(len, self._stored.values()))

    def attribute(self, owner: Held, name: str) -> Held:
        """An attribute of what is held."""
        pending = None if owner.real is None else self.pending(owner.real, name)
        stored = self._stored.get(name, frozenset())
        if pending is not None:
            return Held(pending.memory | stored, pending.container, pending.real, owner, name)
        if owner.real is None or isinstance(owner.real, EACH):
            is_method = hasattr(torch.Tensor, name) and name not in _VIEWS
            memory = frozenset() if is_method else owner.memory
            return Held(memory | stored, owner=owner, name=name)
        found = self.of(_attribute(owner.real, name))
        return Held(found.memory | stored, found.container, found.real, _receiver(owner), name)

    def element(self, holder: Held, key: Held) -> Held:
        """An element of a container, any one if the place is not known, or a view of a tensor."""
        memory = holder.memory
        if holder.container:
            memory |= self._stored.get("[]", frozenset())
        values = holder.real if isinstance(holder.real, EACH) else None
        if isinstance(holder.real, _CONTAINERS) and values is None:
            try:
                if key.real is not None:
                    real: Any = holder.real
                    return self.of(real[key.real])
            except (KeyError, IndexError, TypeError):
                pass
            values = EACH(_elements(holder.real))
        return Held(memory, real=None if values is None else EACH(values))


def _elements(value: Any) -> list[Any]:
    values = value.values() if isinstance(value, (dict, torch.nn.ModuleDict)) else value
    return list(values)[:_MOST_ELEMENTS]


def _receiver(owner: Held) -> Held | None:
    """The first argument of a method; None for a function of a module or class."""
    return None if isinstance(owner.real, (types.ModuleType, type)) else owner


def _attribute(value: Any, name: str) -> Any:
    """An attribute, without running anything of the program; None if that is not possible."""
    held = getattr(value, "__dict__", {})
    if isinstance(value, (types.ModuleType, type)):
        found = next(
            (vars(k)[name] for k in getattr(value, "__mro__", [value]) if name in vars(k)), None
        )
        return getattr(found, "__func__", found)
    for place in (held, *(held.get(kind, {}) for kind in ("_buffers", "_parameters", "_modules"))):
        if name in place:
            return place[name]
    found = next((vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind)), None)
    return found if isinstance(found, types.FunctionType) else None
