"""Apply behind the graph what one arm of a branch binds to an attribute of an older object.

The pending value of such an attribute is one of two (phi.py): what the arm bound, or
:data:`UNCHANGED`, where the attribute stays as it is. So the object is not asked for its attribute,
and no guard depends on it. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch._dynamo import utils
from torch._dynamo.bytecode_transformation import create_call_function, create_instruction
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables import DeletedVariable, dicts
from torch._dynamo.variables.base import VariableTracker

from fusepass.torch_private.dynamo.globals_written import is_global, push_namespace, value_before
from fusepass.torch_private.dynamo.phi import PhiVariable, is_phi, leaves_of
from fusepass.torch_private.dynamo.stack import OBSERVED_EXCEPTIONS, constant, current_translator
from fusepass.torch_private.patches import IsOurs, Patches, Theirs


class Outcome(enum.Enum):
    """What stands behind the graph for a value that an arm did not bind."""

    UNCHANGED = "unchanged"
    DELETED = "deleted"


unchanged, deleted = Outcome.UNCHANGED, Outcome.DELETED  # as the code behind the graph loads them


class _OutcomeVariable(VariableTracker):
    """A tracked :class:`Outcome`."""

    def __init__(self, outcome: Outcome, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.outcome = outcome

    def reconstruct(self, codegen: Any) -> None:
        """Write the code that loads it."""
        codegen.load_import_from(__name__, self.outcome.value)


UNCHANGED = _OutcomeVariable(Outcome.UNCHANGED)
_DELETED = _OutcomeVariable(Outcome.DELETED)


def bound_value(value: Any) -> Any:
    """What an arm left of an attribute, as one of two values may be it."""
    return _DELETED if isinstance(value, DeletedVariable) else value


def changes(value: Any) -> bool:
    """Whether a tracked value stands for an attribute that goes."""
    return value is _DELETED


def is_open(value: Any) -> bool:
    """Whether a tracked value may stand for an attribute that stays as it is, or goes."""
    return is_phi(value) and any(isinstance(one, _OutcomeVariable) for one in leaves_of(value))


def store_chosen(store: Callable[..., Any], item: Any, name: str, value: Any) -> None:
    """Bind an attribute, or delete it, if the arm was taken that does so."""
    if value is Outcome.DELETED:
        delattr(item, name)
    elif value is not Outcome.UNCHANGED:
        store(item, name, value)


skip_code(store_chosen.__code__)  # else Dynamo, which sees every call, would compile it


@dataclass(frozen=True)
class _Write:
    item: Any
    name: str
    value: Any
    store: tuple[str, str]  # module and name of the function that binds it


def hook_writes(patches: Patches, is_ours: IsOurs, on_read: Callable[..., Any]) -> None:
    """Apply such writes, and answer for the attribute where code reads it.

    Args:
        patches: take the hook out again.
        is_ours: whether a frame is compiled for fusepass.
        on_read: called as ``(translator, value, name, older)`` where an attribute is read whose
            value is one of two; ``older`` is what it was before, or None if it was not there or
            one arm deletes it. Gives the value, or raises.
    """

    def load(theirs: Theirs, self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        value = theirs(self, item, name, *args, **kwargs)
        if not is_open(value):
            return value
        translator = current_translator()
        gone = any(one is _DELETED for one in leaves_of(value))
        return on_read(translator, value, name, None if gone else _older(self, item, name))

    def update(theirs: Theirs, self: Any, codegen: Any, *args: Any, **kwargs: Any) -> None:
        if not is_ours(codegen.tx.output):
            theirs(self, codegen, *args, **kwargs)
            return
        held = {item: dict(writes) for item, writes in self.store_attr_mutations.items()}
        writes = list(_taken_out(self))
        for write in reversed(writes):  # values first: what is bound may be what is read
            _push(codegen, write)
        try:
            theirs(self, codegen, *args, **kwargs)
        finally:
            self.store_attr_mutations = held
        for _ in writes:
            codegen.extend_output([*create_call_function(4, False), create_instruction("POP_TOP")])

    patches.put(SideEffects, "load_attr", load)
    _hook_dicts(patches, is_ours, on_read)
    patches.put(SideEffects, "codegen_update_mutated", update)


def _hook_dicts(patches: Patches, is_ours: IsOurs, on_read: Callable[..., Any]) -> None:
    """The same where code reads an attribute in the ``__dict__`` of an object.

    Since torch 2.13 Dynamo looks there for what was stored there alone.
    """
    proxy = getattr(dicts, "SideEffectsProxyDict", None)
    if proxy is None:
        return

    def pending(held: Any, key: Any) -> Any:
        if not is_ours(held.side_effects.output_graph_weakref()):
            return None
        return held.side_effects.store_attr_mutations.get(held.item, {}).get(
            held._maybe_unwrap_key(key)
        )

    def getitem(theirs: Theirs, self: Any, key: Any) -> Any:
        if is_phi(pending(self, key)):
            return self.side_effects.load_attr(self.item, self._maybe_unwrap_key(key))
        return theirs(self, key)

    def contains(theirs: Theirs, self: Any, key: Any) -> Any:
        if is_phi(pending(self, key)):
            self.side_effects.load_attr(self.item, self._maybe_unwrap_key(key))
            return True
        return theirs(self, key)

    def iterated(theirs: Theirs, self: Any) -> Any:
        writes = self.side_effects.store_attr_mutations.get(self.item, {})
        for name, value in writes.items():
            if is_open(value) and is_ours(self.side_effects.output_graph_weakref()):
                on_read(current_translator(), value, name, None)
        return theirs(self)

    patches.put(proxy, "__getitem__", getitem)
    patches.put(proxy, "__contains__", contains)
    patches.put(proxy, "__iter__", iterated)


def with_older(value: Any, older: Any, told: str) -> Any:
    """A value that is one of two, where what stays as it is is known."""
    made: dict[int, Any] = {}

    def known(one: Any) -> Any:
        if not is_phi(one):
            return older if one is UNCHANGED else one
        if id(one) not in made:
            sides = known(one.taken), known(one.other)
            made[id(one)] = PhiVariable(one.predicate, one.held, *sides, one.site, told)
        return made[id(one)]

    return known(value)


def _older(effects: Any, item: Any, name: str) -> Any:
    """What an attribute of an older object was before any pending write; None if it was not."""
    if is_global(item):
        return value_before(name)
    held = effects.store_attr_mutations[item]
    effects.store_attr_mutations[item] = {n: value for n, value in held.items() if n != name}
    try:
        translator = current_translator()
        asking = VariableTracker.build(translator, getattr)  # another class since torch 2.15
        return asking.call_function(translator, [item, constant(name)], {})
    except OBSERVED_EXCEPTIONS:
        return None
    finally:
        effects.store_attr_mutations[item] = held


def _taken_out(effects: Any) -> Iterator[_Write]:
    """Take the writes out of what is pending that Dynamo could not apply, in program order."""
    for item, writes in list(effects.store_attr_mutations.items()):
        if any(map(is_open, writes.values())):
            # All attributes of the object, whose order shows in its `__dict__`.
            own = {n: v for n, v in writes.items() if not isinstance(v, DeletedVariable)}
            effects.store_attr_mutations[item] = {n: v for n, v in writes.items() if n not in own}
            for name, value in own.items():
                yield _Write(item, name, value, _function_for(effects, item, name))


def _function_for(effects: Any, item: Any, name: str) -> tuple[str, str]:
    """The function with which Dynamo binds an attribute, where it knows several ways."""
    if is_global(item):
        return "operator", "setitem"
    kinds = getattr(effects, "attr_mutation_kinds", {}).get(item, {})
    kind = getattr(kinds.get(name), "name", "")
    if kind == "INSTANCE_DICT" or name in getattr(item, "attrs_directly_modifed_on_dict", ()):
        return utils.__name__, "object_setattr_ignore_descriptor"
    slow = getattr(item, "needs_slow_setattr", None)
    if slow is not None and slow():
        return __name__, object_setattr.__name__
    return "builtins", "setattr"


def object_setattr(item: Any, name: str, value: Any) -> None:
    """Bind an attribute behind the back of the class's own ``__setattr__``, which was traced."""
    object.__setattr__(item, name, value)


skip_code(object_setattr.__code__)


def _push(codegen: Any, write: _Write) -> None:
    codegen.add_push_null(lambda: codegen.load_import_from(__name__, store_chosen.__name__))
    codegen.load_import_from(*write.store)
    if is_global(write.item):
        push_namespace(codegen)
    else:
        codegen(write.item)
    codegen(constant(write.name))
    codegen(write.value)
