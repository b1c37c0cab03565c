"""Copy and restore the positions of tracked iterators. Run on torch 2.11 to 2.15.

Dynamo advances iterators in place. Two arms start from the same ones, so where they stand is copied
before the first arm and put back before the second.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from torch._dynamo.symbolic_convert import InliningGeneratorInstructionTranslator
from torch._dynamo.variables import ConstDictVariable, TensorVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.iter import IteratorVariable
from torch._dynamo.variables.lists import BaseListVariable

from fusepass.torch_private.dynamo.compile_state import is_internal_file
from fusepass.torch_private.dynamo.stack import is_unused, realized
from fusepass.torch_private.patches import Patches, Theirs

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
            todo += value.items
        elif isinstance(value, ConstDictVariable):
            todo += value.items.values()
    return list(found.values())


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
