"""Read, allow and make Dynamo's pending writes to objects of the program.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch._dynamo.variables import TensorVariable

from fusepass.torch_private.dynamo.errors.raising import frames_outwards, source_name
from fusepass.torch_private.dynamo.frame_end import line_of
from fusepass.torch_private.dynamo.phi import watching
from fusepass.torch_private.dynamo.stack import (
    UNSUPPORTED_ERRORS,
    cell_contents,
    is_unused,
    realized,
)
from fusepass.torch_private.patches import IsOurs, Patches, Theirs

_WRITTEN = "fusepass_written"  # attribute of an error: what may not be written
_KINDS = {
    "ConstDictVariable": "dictionary",
    "DefaultDictVariable": "dictionary",
    "DequeVariable": "deque",
    "ListVariable": "list",
    "NewGlobalVariable": "global variable",
    "SetVariable": "set",
}


@contextlib.contextmanager
def side_effects_allowed(effects: Any, allowed: Callable[[Any], bool]) -> Iterator[list[str]]:
    """Inside, writes to objects of outer scopes that ``allowed`` accepts are let through.

    What is yielded gets a sentence on each other write: Dynamo may swallow the error of one, as
    where a ``defaultdict`` makes a value.
    """
    refused: list[str] = []
    checked = effects.check_allowed_side_effect

    def check(item: Any) -> Any:
        if allowed(item):
            return True
        try:
            return checked(item)
        except UNSUPPORTED_ERRORS as error:
            text = vars(error).setdefault(_WRITTEN, _described(effects, item, error))
            refused.append(text)
            raise

    with Patches() as patches:
        patches.set(effects, "check_allowed_side_effect", check)
        if hasattr(effects, "snapshot_attr_mutation"):
            # Since torch 2.13: for a constant, the attribute would be read first, and guarded.
            patches.set(effects, "snapshot_attr_mutation", lambda *_: False)
        yield refused


def what_was_done(error: BaseException) -> str | None:
    """The write, with name and line, that ended a trace; None if something else ended it."""
    return vars(error).get(_WRITTEN)


def _described(effects: Any, item: Any, error: BaseException) -> str:
    stack = vars(error).get("real_stack")
    at = effects.output_graph_weakref().current_tx
    known = stack and stack[-1].filename == at.f_code.co_filename  # but not in code behind a break
    line = line_of(at, at.current_instruction) if known else stack and stack[-1].lineno
    line = f" (line {line})" if line else ""
    if type(item).__name__ == "CellVariable":
        name = item.local_name or _local_name(effects, item)
        what = f"the variable `{name}`" if name else "a variable"
        return f"binds {what}{line}, which an inner function or a comprehension shares"
    name = source_name(item) or _local_name(effects, item)
    kind = _KINDS.get(type(item).__name__, "object")
    what = f"the {kind} `{name}`" if name else f"a {kind}"
    return f"writes {what}{line}, which existed before"


def _local_name(effects: Any, item: Any) -> str | None:
    for frame in frames_outwards(effects.output_graph_weakref().current_tx):
        for name, value in frame.symbolic_locals.items():
            held = value if is_unused(value) else realized(value)
            is_cell = type(held).__name__ == "CellVariable"
            if held is item or (is_cell and cell_contents(effects, held) is item):
                return str(name)
    return None


def is_plain_object(item: Any) -> bool:
    """Whether a tracked value is an object or module of the program with attributes of its own."""
    kinds = ("UserDefinedObjectVariable", "UnspecializedNNModuleVariable")
    return type(item).__name__ in kinds


def is_namespace(item: Any) -> bool:
    """Whether it is a class, a Python module, or stands for one global variable."""
    kinds = ("NewGlobalVariable", "PythonModuleVariable", "UserDefinedClassVariable")
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


def set_held_items(container: Any, items: Any) -> None:
    """Put the items of a tracked dictionary back, in place."""
    container.items.clear()
    container.items.update(items)


def bind_attribute(effects: Any, item: Any, name: Any, value: Any) -> None:
    """Bind an attribute of a tracked object, or a key of a tracked dictionary."""
    with watching(False):  # the value may be one of two
        if isinstance(name, str):
            effects.store_attr(item, name, value)
        else:
            effects.mutation(item)
            item.items[name] = value


def hook_classes(patches: Patches, is_ours: IsOurs) -> None:
    """Keep the class of a tensor behind a call that writes it.

    Before torch 2.15 Dynamo then takes the class of the fake tensor. For a subclass without tensors
    of its own, that is an ordinary tensor.
    """

    def keeping(theirs: Theirs, self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
        held = self.class_type
        theirs(self, tx, *args, **kwargs)
        if is_ours(tx.output):
            self.class_type = held

    patches.put(TensorVariable, "synchronize_attributes", keeping)
