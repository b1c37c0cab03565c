"""Take Dynamo's containers, objects and iterators apart, and rebuild or restore them.

Dynamo advances iterators in place. Two arms start from the same ones, so where they stand is copied
before the first arm and put back before the second. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo import variables
from torch._dynamo.current_scope_id import current_scope_id
from torch._dynamo.symbolic_convert import InliningGeneratorInstructionTranslator
from torch._dynamo.variables import ConstDictVariable, TensorVariable, TupleVariable
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew, VariableTracker
from torch._dynamo.variables.iter import IteratorVariable
from torch._dynamo.variables.lists import BaseListVariable

from fusepass.torch_private.dynamo.compile_state import is_internal_file
from fusepass.torch_private.dynamo.errors.wording import noun_of
from fusepass.torch_private.dynamo.stack import is_unused, realized
from fusepass.torch_private.patches import Patches, Theirs

# The classes have other names, or other places, in each version.
_NAMED_TUPLES = ("NamedTupleVariable", "StructSequenceVariable")
# OrderedDictVariable is a dict on torch 2.15 and an object before.
_DICT_OBJECTS = (
    "OrderedDictVariable",
    "UserDefinedDictVariable",
    "UserDefinedOrderedDictVariable",
)
_OBJECTS = ("UserDefinedObjectVariable", "FrozenDataClassVariable", *_DICT_OBJECTS)


@dataclass(frozen=True)
class Container:
    """A tracked tuple, list, dict or object, taken apart.

    Attributes:
        value: Dynamo's tracked value.
        kind: ``"tuple"``, ``"list"``, ``"dict"`` or ``"object"``.
        of: its class.
        items: values by position or key; None for an object that has none.
        attributes: values by name, of an object.
        ways: how each attribute was set, where Dynamo tells the ways apart.
    """

    value: Any
    kind: str
    of: type
    items: Any
    attributes: dict[str, Any] = field(default_factory=dict)
    ways: dict[str, Any] = field(default_factory=dict)


def container_of(value: Any, effects: Any) -> Container | None:
    """The parts of a container that a branch may join item by item; None for anything else.

    Tuples may be of any age, what can be written must have been made in an arm just left.
    """
    kind = type(value)
    if kind is variables.TupleVariable:
        return Container(value, "tuple", tuple, list(value.items))
    if kind.__name__ in _NAMED_TUPLES:
        return _named_tuple(value, effects)
    if not _made_in_arm(value):
        return None
    if kind is variables.ListVariable:
        return Container(value, "list", list, list(value.items))
    if kind.__name__ == "ConstDictVariable":
        return Container(value, "dict", value.python_type(), dict(value.items))
    return _object(value, effects) if kind.__name__ in _OBJECTS else None


def _made_in_arm(value: Any) -> bool:
    """Whether a container was made in a deeper scope than the one in force: in an arm just left."""
    mutation = getattr(value, "mutation_type", None)
    return value.source is None and getattr(mutation, "scope", 0) > current_scope_id()


def _named_tuple(value: Any, effects: Any) -> Container | None:
    """A named tuple may have attributes: one made by its class is an object that has items.

    Not so those that operations return, and those of torch 2.11, where all are values.
    """
    of = value.tuple_cls
    made_by = next(kind for kind in of.__mro__ if "__new__" in vars(kind))
    if value.source is not None or made_by.__bases__ != (tuple,):
        return None
    items = list(value.items)
    if _is_tracked(value, effects):
        return _with_attributes(value, effects, items) if _made_in_arm(value) else None
    return (
        None if getattr(value, "dynamic_attributes", None) else Container(value, "tuple", of, items)
    )


def _object(value: Any, effects: Any) -> Container | None:
    if isinstance(value.mutation_type, ValueMutationNew):
        return Container(value, "dict", value.python_type(), dict(value.items))
    by_init_alone = value.value_type.__new__ in (object.__new__, dict.__new__)
    if not by_init_alone or not _is_tracked(value, effects):
        return None
    held = _dict_of(value)
    return _with_attributes(value, effects, None if held is None else dict(held.items))


def _is_tracked(value: Any, effects: Any) -> bool:
    """Whether Dynamo will make the object, and set its attributes, after the graph."""
    tracked = effects.id_to_variable.get(id(value.value)) is value
    return tracked and isinstance(value.mutation_type, AttributeMutationNew)


def _with_attributes(value: Any, effects: Any, items: Any) -> Container:
    kinds = getattr(effects, "attr_mutation_kinds", {}).get(value, {})
    directly = getattr(value, "attrs_directly_modifed_on_dict", ())
    attributes = dict(effects.store_attr_mutations.get(value, {}))
    ways = {name: (kinds.get(name), name in directly) for name in attributes}
    return Container(value, "object", value.value_type, items, attributes, ways)


def _dict_of(value: Any) -> Any:
    """The tracked dict that holds the items of an object that is a dict; on 2.15 the object."""
    if type(value).__name__ not in _DICT_OBJECTS:
        return None
    held = getattr(value, "_base_vt", None) or getattr(value, "_dict_vt", None)
    return value if held is None else held


def rebuilt(container: Container, items: Any) -> Any:
    """A new tuple, list or dict of the same class with other items."""
    value = container.value
    if type(value) is variables.TupleVariable:
        return value.clone(items=items, source=None)
    if container.kind != "tuple":
        return value.clone(items=items, source=None, mutation_type=ValueMutationNew())
    if hasattr(value, "dynamic_attributes"):  # torch 2.11
        return type(value)(items, container.of, mutation_type=AttributeMutationNew())
    if getattr(value, "_base_vt", None) is None:  # torch 2.15
        return type(value)(value.value, items=items, mutation_type=ValueMutationNew())
    held = variables.TupleVariable(items, mutation_type=ValueMutationNew())
    return type(value)(value.value, tuple_vt=held, mutation_type=ValueMutationNew())


def fill_object(container: Container, effects: Any, items: Any, attributes: dict[str, Any]) -> Any:
    """Make an object of an arm one of the scope in force, with other items and attributes.

    Its class has no ``__new__`` of its own, so only ``__init__`` could look at the arguments an
    object was made with, and that has been traced; a tuple is made of its items.
    """
    value, held = container.value, _dict_of(container.value)
    value.mutation_type = AttributeMutationNew(value.mutation_type.cls_source)
    value.init_args = []
    if held is not None:
        held.items.clear()
        held.items.update(items)
        if held is not value:
            held.mutation_type = ValueMutationNew()
    elif container.items is not None:
        made_of = TupleVariable(items, mutation_type=ValueMutationNew())
        value.init_args = [made_of]
        if getattr(value, "_base_vt", None) is None:  # torch 2.15
            value.items = list(items)
        else:
            value._base_vt = made_of
    if attributes:
        effects.store_attr_mutations[value] = attributes
    if hasattr(value, "fields"):  # a frozen dataclass on torch 2.11
        value.fields = {name: attributes.get(name, old) for name, old in value.fields.items()}
    return value


def kind_of(value: Any) -> str:
    """What a tracked value is, for a person: the name of its class, or a noun, without article."""
    of = getattr(value, "value_type", None)
    if isinstance(of, type):
        return of.__name__
    return noun_of(type(value).__name__)


def container_items(value: Any) -> tuple[Any, Any] | None:
    """``(type, items)`` of a tracked tuple, list or dict, wherever it was made; else None."""
    kinds = {
        variables.TupleVariable: tuple,
        variables.ListVariable: list,
        variables.lists.SizeVariable: torch.Size,
    }
    if type(value) in kinds:
        return kinds[type(value)], list(value.items)
    if type(value).__name__ in _NAMED_TUPLES:
        kind = value.tuple_cls
        make = getattr(kind, "_make", kind)
        return (make, list(value.items)) if _has_text_of_tuples(kind) else None
    if type(value) is variables.ConstDictVariable and getattr(value, "user_cls", dict) is dict:
        keys = [getattr(key, "vt", key) for key in value.items]
        return dict, list(zip(keys, value.items.values(), strict=True))
    return None


def _has_text_of_tuples(kind: Any) -> bool:
    """Whether no code of the program makes the text of a named tuple."""
    if kind.__module__ == "torch.return_types":
        return True
    made = getattr(getattr(kind, "__repr__", None), "__code__", None)
    own = kind.__str__ is not object.__str__ or kind.__format__ is not object.__format__
    standard = made is not None and made.co_filename == collections.namedtuple.__code__.co_filename
    return kind.__bases__ == (tuple,) and standard and not own


State = dict[str, Any]
ROW = "fusepass_row"  # meta key on a node of a row that iteration over a tensor gives

_COPIED_ITERATORS = frozenset(
    """
    dict_itemiterator dict_keyiterator dict_valueiterator list_iterator range_iterator
    tuple_iterator
    """.split()
)
_MOVED = ("block_stack", "generated_items", "stack", "symbolic_locals")


def iterator_states(values: Sequence[Any], *, generators: bool = False) -> list[tuple[Any, State]]:
    """Every iterator among tracked values, and inside them, with a copy of where it stands.

    Dynamo's own stand-in for ``enumerate`` is a generator; its frame is copied as well.

    Args:
        values: tracked values, or frames of generators that an earlier call found.
        generators: generators of the program are left out, because nothing will advance them.

    Raises:
        ValueError: a generator of the program is among them, whose state cannot be copied.
    """
    found: dict[int, tuple[Any, State]] = {}
    todo, seen = list(values), set()
    while todo:
        value = todo.pop()
        if is_unused(value):
            continue
        value = realized(value)
        frame = isinstance(value, InliningGeneratorInstructionTranslator)
        if not (frame or isinstance(value, VariableTracker)) or id(value) in seen:
            continue
        seen.add(id(value))
        if "GeneratorObject" in type(value).__name__:
            if is_internal_file(value.code.co_filename):
                todo.append(value.inline_tracer)
            elif not generators:
                raise ValueError("a generator")
        elif frame:
            found[id(value)] = (value, _frame_state(vars(value)))
            todo += [*value.stack, *value.symbolic_locals.values()]
        elif isinstance(value, IteratorVariable):
            state = copied_state(vars(value))
            found[id(value)] = (value, state)
            for held in state.values():
                todo.extend(held if isinstance(held, (list, tuple)) else [held])
        elif isinstance(value, BaseListVariable):
            todo += vars(value).get("items", ())  # of an open one (open_containers.py), too
        elif isinstance(value, ConstDictVariable):
            todo += vars(value)["items"].values()
    return list(found.values())


def iterators_among(values: Sequence[Any]) -> list[tuple[Any, State]]:
    """The iterators among tracked values, and inside these, with a copy of where they stand."""
    found = [value for value in values if isinstance(value, IteratorVariable)]
    return iterator_states(found, generators=True) if found else []


def set_iterator_state(iterator: Any, state: State) -> None:
    """Set an iterator to where it stood; the state may be used again."""
    frame = not hasattr(iterator, "next_variable")
    copies = _frame_state(state) if frame else copied_state(state)
    vars(iterator).clear()
    vars(iterator).update(copies)


def copied_state(state: State) -> State:
    """The attributes of a tracked iterator, copied as far as advancing it changes them.

    Raises:
        ValueError: it advances something that cannot be copied.
    """
    copied: State = {}
    for name, value in state.items():
        if isinstance(value, list):
            copied[name] = list(value)
        elif isinstance(value, Iterator):  # as over the values of a dict: what is left of them
            if type(value).__name__ not in _COPIED_ITERATORS:
                raise ValueError("an iterator that cannot be copied")
            copied[name] = copy.copy(value)
        else:
            copied[name] = value
    return copied


def _frame_state(state: State) -> State:
    """The attributes of a generator's frame; globals and the like stay shared with others."""
    return {k: copy.copy(v) if k in _MOVED else v for k, v in state.items()}


def hook_rows(patches: Patches) -> None:
    """Mark the rows that iteration gives: Dynamo records them as lookups, eager unbinds."""

    def marked(theirs: Theirs, self: Any, *args: Any, **kwargs: Any) -> Any:
        rows = theirs(self, *args, **kwargs)
        for row in rows:
            row.as_proxy().node.meta[ROW] = True
        return rows

    patches.put(TensorVariable, "unpack_var_sequence", marked)
