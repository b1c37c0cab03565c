"""Change a list, dict, set or deque behind the graph as the arms did that were taken.

While the frame is traced, nobody knows what such a container holds: it is *open*. It keeps what it
held before, and the changes in program order. What else code asks about it goes to a handler of
capture. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch._dynamo.bytecode_transformation import create_call_function, create_instruction
from torch._dynamo.current_scope_id import current_scope_id
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables import ListVariable, TupleVariable
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationNew

from fusepass.torch_private.dynamo.errors.raising import source_name
from fusepass.torch_private.dynamo.errors.wording import noun_of
from fusepass.torch_private.dynamo.open_writes import Outcome
from fusepass.torch_private.dynamo.stack import break_graph, constant, frames_held
from fusepass.torch_private.dynamo.values_inside import values_inside
from fusepass.torch_private.patches import IsOurs, Patches, Theirs

_DICTS = ("ConstDictVariable", "DefaultDictVariable", "OrderedDictVariable")
_CLASSES = (*_DICTS, "DequeVariable", "ListVariable", "SetVariable")
_PLAIN = (list, collections.deque, collections.OrderedDict, dict, set)
_BLIND = {  # changes that ask nothing of what the container holds, and cannot fail
    "ListVariable": ("append", "extend"),
    "DequeVariable": ("append", "appendleft", "extend"),
    **dict.fromkeys(_DICTS, ("__setitem__",)),
    "SetVariable": ("add",),
}
_DICT_CLASSES = (dict, collections.OrderedDict, collections.defaultdict)
_OF_DICTS = ("_base_vt", "_dict_vt")
_INSIDE = {"_base_vt", "_dict_vt", "_list_vt", "_set_vt", "_tuple_vt", "dict_vt"}  # of an object
_OF_A_MODULE = ("_buffers", "_modules", "_parameters")
_UPDATES = "fusepass_updates"  # attribute of an open container: how and with what it is changed
_MODIFIED = "fusepass_modified"  # the same: whether it was changed before it was open
_handlers: list[Callable[[Any], None]] = []

Update = tuple[str, Any]  # a method, or "replace" or "store", and the tracked tuple of arguments


@dataclass
class Contents:
    """What a tracked container holds at one time.

    Attributes:
        container: the tracked value.
        items: a copy of its items.
        updates: how many changes it has, if it is open.
        open: whether it is.
        flags: what Dynamo knows besides of how it was changed.
        added: the changes that led here from what it held before an arm.
    """

    container: Any
    items: Any
    updates: int
    open: bool
    flags: dict[str, Any] = field(default_factory=dict)
    added: list[Update] = field(default_factory=list)

    @classmethod
    def of(cls, container: Any) -> Contents:
        """What a container holds now."""
        held = vars(container)["items"]
        flags = {"should_reconstruct_all": vars(container).get("should_reconstruct_all")}
        mutation = container.mutation_type
        flags["is_modified"] = getattr(mutation, "is_modified", None)
        return cls(container, held.copy(), len(updates_of(container)), is_open(container), flags)

    def restore(self) -> None:
        """Have the container hold that again; iterators share the list with it."""
        held = vars(self.container)["items"]
        held.clear()
        (held.update if isinstance(held, dict) else held.extend)(self.items)
        if self.open:
            del updates_of(self.container)[self.updates :]
        elif is_open(self.container):
            self.container.__class__ = type(self.container).fusepass_base
            del vars(self.container)[_UPDATES], vars(self.container)[_MODIFIED]
        if self.flags["should_reconstruct_all"] is not None:
            self.container.should_reconstruct_all = self.flags["should_reconstruct_all"]
        if self.flags["is_modified"] is not None:
            self.container.mutation_type.is_modified = self.flags["is_modified"]

    def differs(self, other: Contents) -> bool:
        """Whether the same container holds, or will hold, something else."""
        if self.updates != other.updates or len(self.items) != len(other.items):
            return True
        if not isinstance(self.items, dict):
            return any(a is not b for a, b in zip(self.items, other.items, strict=True))
        pairs = zip(self.items.items(), other.items.items(), strict=True)
        return any(k != o or a is not b for (k, a), (o, b) in pairs)


def updates_of(container: Any) -> list[Update]:
    """The changes of an open container, in order; none for another."""
    found: list[Update] = vars(container).get(_UPDATES, [])
    return found


def kind_of_container(value: Any) -> str | None:
    """The name of Dynamo's class of a container whose changes can wait, or None."""
    base = getattr(type(value), "fusepass_base", type(value))
    name = base.__name__
    if name not in _CLASSES or "items" not in vars(value):
        return None
    if getattr(value, "user_cls", dict) not in _DICT_CLASSES:
        return None
    if value.mutation_type is None or getattr(value.source, "member", None) in _OF_A_MODULE:
        return None
    return str(name)


def told_container(value: Any) -> str:
    """A container for a person: its class, and the name that the program has it under."""
    noun = noun_of(getattr(type(value), "fusepass_base", type(value)).__name__)
    name = source_name(value)
    return f"the {noun} `{name}`" if name else f"a {noun}"


def is_open(value: Any) -> bool:
    """Whether nobody knows what a container holds until the graph has run."""
    return type(value) in _open_classes.values()


def set_items(translator: Any, container: Any, items: dict[Any, Any]) -> None:
    """Have a container hold other items at some keys or positions."""
    if not items:
        return
    translator.output.side_effects.mutation(container)
    held = vars(container)["items"]
    if isinstance(held, dict):
        held.update(items)
        return
    if set(items) >= set(range(len(held))) or max(items) >= len(held):
        held[:] = [items[position] for position in range(len(items))]  # of another length
        return
    for position, value in items.items():
        held[position] = value


def add_updates(translator: Any, container: Any, updates: list[Update]) -> None:
    """Change a container behind the graph."""
    opened(container)
    translator.output.side_effects.mutation(container)
    updates_of(container).extend(updates)
    if any("delete" in how for how, _ in updates) and container.source is not None:
        translator.output.guard_on_key_order.add(container.source)  # which one may follow from it


def is_older(value: Any) -> bool:
    """Whether a container is older than the arm that is traced."""
    return bool(getattr(value.mutation_type, "scope", 0) < current_scope_id())


def is_outside(value: Any) -> bool:
    """Whether a container is older than the frame."""
    return not isinstance(value.mutation_type, ValueMutationNew)


def is_applied(effects: Any, value: Any) -> bool:
    """Whether Dynamo itself changes or makes a container, and not the object around it."""
    return not is_outside(value) or any(one is value for one in applied(effects))


def applied(effects: Any) -> Iterator[Any]:
    """What Dynamo changes behind the graph: tracked values, and what holds the items of a dict."""
    for value in list(effects.id_to_variable.values()):
        yield value
        held = held_by(value)
        if held is not None:
            yield held


def held_by(value: Any) -> Any:
    """What holds the items of an older object of a class that is a dict; else None."""
    if not isinstance(getattr(value, "mutation_type", None), AttributeMutationExisting):
        return None
    for name in _OF_DICTS:
        held = vars(value).get(name)
        if getattr(type(held), "fusepass_base", type(held)).__name__ == "ConstDictVariable":
            return held
    return None


def containers_held(translator: Any) -> Iterator[Any]:
    """All containers that the program could change, and whose changes can wait."""
    effects = translator.output.side_effects
    own = [value for writes in effects.store_attr_mutations.values() for value in writes.values()]
    outer = [*effects.id_to_variable.values()]
    found = [*outer, *values_inside([*frames_held(translator), *own, *outer])]
    known = {id(vars(one)[name]) for one in found for name in _INSIDE & vars(one).keys()}
    known -= {id(held) for held in map(held_by, outer)}
    for value in found:
        if id(value) not in known and kind_of_container(value) is not None:
            known.add(id(value))
            yield value


def is_iterated(translator: Any, container: Any) -> bool:
    """Whether an iterator over a list has not come to its end."""
    held = values_inside(frames_held(translator))
    items = vars(container)["items"]
    return any("Iterator" in type(one).__name__ and vars(one).get("items") is items for one in held)


def updates_between(before: Contents, after: Contents) -> list[Update]:
    """The changes that lead from one state of a container to another."""
    later = updates_of(before.container)[before.updates : after.updates]
    return later if before.open else [*_difference(before, after), *later]


def _difference(before: Contents, after: Contents) -> list[Update]:
    old, new = before.items, after.items
    if not isinstance(new, dict):
        front = new[: len(old)]
        if len(front) < len(old) or any(a is not b for a, b in zip(front, old, strict=True)):
            return [("replace", _tuple([_tuple(new)]))]
        rest = new[len(old) :]
        return [("extend", _tuple([_tuple(rest)]))] if rest else []
    if kind_of_container(before.container) == "SetVariable":
        gone, come = ([k.vt for k in one if k not in two] for one, two in ((old, new), (new, old)))
        found = [("difference_update", gone), ("update", come)]
        return [(how, _tuple([_tuple(keys)])) for how, keys in found if keys]
    stay = _in_place(list(old), list(new))
    gone = [key.vt for key in old if key not in stay]
    pairs = [_tuple([k.vt, v]) for k, v in new.items() if k not in stay or old[k] is not v]
    found = [("delete", gone), ("store", pairs)]
    return [(how, _tuple([_tuple(items)])) for how, items in found if items]


def _in_place(old: list[Any], new: list[Any]) -> set[Any]:
    """The first keys of a dict that have not been removed or moved behind others."""
    positions = {key: position for position, key in enumerate(old)}
    stay: dict[Any, int] = {}
    last = -1
    for key in new:
        position = positions.get(key, -1)
        if position <= last:
            break
        stay[key] = last = position
    return set(stay)


def _tuple(items: list[Any]) -> Any:
    return TupleVariable(list(items), mutation_type=ValueMutationNew())


def opened(container: Any) -> None:
    """Make a container open."""
    base = type(container)
    if is_open(container):
        return
    if base not in _open_classes:
        kind: Any = type("Open" + base.__name__, (_Open, base), {"fusepass_base": base})
        kind.reconstruct = _Open.reconstruct  # torch 2.11 puts a check for cycles before both
        _open_classes[base] = kind
    setattr(container, _UPDATES, [])
    setattr(container, _MODIFIED, getattr(container.mutation_type, "is_modified", False))
    container.__class__ = _open_classes[base]


_open_classes: dict[type, type] = {}
_in_making: list[Any] = []  # containers of which the code that makes them is being written


class _Open:
    """In front of a class of Dynamo's containers: what an open one does."""

    fusepass_base: type

    def _asked(self) -> Any:
        _handlers[0](self)
        raise AssertionError("an open container was asked what it holds")

    @property
    def items(self) -> Any:
        return self._asked()

    @items.setter
    def items(self, value: Any) -> None:
        vars(self)["items"] = value

    def is_python_constant(self) -> bool:
        return False

    def as_python_constant(self) -> Any:
        # What Dynamo catches of a value that is no constant. Its own subclass of this error has
        # the text of the value, which asks what the container holds.
        raise NotImplementedError("an open container is no constant")

    def clone(self, **_: Any) -> Any:
        return self._asked()

    def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name not in _BLIND[self.fusepass_base.__name__] or kwargs:
            return self._asked()
        given = list(args)
        if name == "extend":
            part = given[0].realize()
            if type(part) not in (TupleVariable, ListVariable):
                return self._asked()
            given = [_tuple(part.items)]
        elif name in ("__setitem__", "add") and not given[0].is_python_constant():
            return self._asked()
        tx.output.side_effects.mutation(self)
        updates_of(self).append((name, _tuple(given)))
        return constant(None)

    def mp_ass_subscript_impl(self, tx: Any, key: Any, value: Any) -> Any:  # torch 2.15
        if value is None or self.fusepass_base.__name__ not in _DICTS:
            return self._asked()
        return self.call_method(tx, "__setitem__", [key, value], {})

    def reconstruct(self, codegen: Any) -> None:
        """Write the code that makes one that did not exist before."""
        updates = updates_of(self)
        if any(one is self for one in _in_making):
            break_graph("Container that holds itself", "a container is put into itself in an arm")
        _in_making.append(self)
        try:
            for _ in updates:
                codegen.add_push_null(lambda: codegen.load_import_from(__name__, changed.__name__))
            with _AsBefore(self):
                type(self).reconstruct(self, codegen)
            for how, value in updates:
                codegen(constant(how))
                codegen(value)
                codegen.extend_output(create_call_function(3, False))
        finally:
            _in_making.pop()


class _AsBefore:
    """Inside, an open container is what it was before it was open."""

    def __init__(self, *containers: Any) -> None:
        self._held = [(one, type(one), one.mutation_type) for one in containers]

    def __enter__(self) -> None:
        for one, kind, mutation in self._held:
            one.__class__ = kind.fusepass_base
            if hasattr(mutation, "is_modified"):
                mutation.is_modified = vars(one)[_MODIFIED]

    def __exit__(self, *_: object) -> None:
        for one, kind, mutation in self._held:
            one.__class__ = kind
            if hasattr(mutation, "is_modified"):
                mutation.is_modified = True


def changed(container: Any, how: str, value: Any) -> Any:
    """Change a container, if the arm was taken that does so."""
    if value is Outcome.UNCHANGED:
        return container
    kind: Any = next(kind for kind in _PLAIN if isinstance(container, kind))
    if how == "store":
        for key, item in value[0]:
            kind.__setitem__(container, key, item)
    elif how == "delete":
        for key in value[0]:
            kind.__delitem__(container, key)
    elif how == "replace":
        kind.clear(container)
        (kind.update if hasattr(kind, "update") else kind.extend)(container, value[0])
    else:
        getattr(kind, how)(container, *value)
    return container


skip_code(changed.__code__)  # else Dynamo, which sees every call, would compile it


def hook_containers(patches: Patches, is_ours: IsOurs, on_asked: Callable[[Any], None]) -> None:
    """Change open containers behind the graph; ``on_asked`` is called with one, and raises."""
    _handlers[:] = [on_asked]
    patches.callback(_handlers.clear)

    def update(theirs: Theirs, self: Any, codegen: Any, *args: Any, **kwargs: Any) -> None:
        held = applied(self) if is_ours(codegen.tx.output) else ()
        found = [one for one in held if type(one) in _open_classes.values()]
        updates = [(one, *each) for one in found for each in updates_of(one)]
        for one, how, value in reversed(updates):  # values first: a change may touch what they read
            codegen.add_push_null(lambda: codegen.load_import_from(__name__, changed.__name__))
            codegen(one.source)
            codegen(constant(how))
            codegen(value)
        with _AsBefore(*found):
            theirs(self, codegen, *args, **kwargs)
        for _ in updates:
            codegen.extend_output([*create_call_function(3, False), create_instruction("POP_TOP")])

    patches.put(SideEffects, "codegen_update_mutated", update)
