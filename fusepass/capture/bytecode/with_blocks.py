"""Find the context manager of a with-block: its class, or its generator's code."""

from __future__ import annotations

import contextlib
import types
from typing import Any

from fusepass.capture.bytecode.caller import callee_of
from fusepass.capture.bytecode.instructions import LOADS_GLOBAL, LOADS_LOCAL, SKIPPED
from fusepass.torch_private.dynamo.eager_frames import WrittenFrame
from fusepass.torch_private.dynamo.errors.raising import context_of, manager_of, named_value

_LOCALS = (*LOADS_LOCAL, "LOAD_DEREF", "LOAD_CLOSURE")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def manager_around(frame: Any, entry: Any) -> Any:
    """The context manager of a with-block, whose entry of the exception table is given."""
    if isinstance(frame, WrittenFrame):
        return _written_manager(frame, entry)
    context = context_of(frame, entry)
    if context is None or hasattr(context, "cm_obj"):
        return None if context is None else manager_of(frame, context)
    return contextlib.nullcontext  # all others are torch's, and put its own state back


def _written_manager(frame: WrittenFrame, entry: Any) -> Any:
    """The context manager of a with-block, by its expression.

    ``with name.attribute:`` and ``with name.attribute(…):`` are looked up; None for anything else.
    """
    steps = frame.instructions
    starts = (
        index
        for index, step in enumerate(steps[:-1])
        if step.opname == "BEFORE_WITH"
        and getattr(steps[index + 1].exn_tab_entry, "target", None) is entry.target
    )
    start = next(starts, None)
    if start is None:
        return None
    before = start - 1
    while before >= 0 and steps[before].opname in (*SKIPPED, "PUSH_NULL"):
        before -= 1
    called = steps[before].opname.startswith("CALL")
    if called:
        loaded = callee_of(steps, before)
        if loaded is None:
            return None
        before = frame.indexof[loaded]
    chain: list[Any] = []
    while steps[before].opname in _ATTRIBUTES:
        chain.insert(0, steps[before])
        before -= 1
    value = _value(frame, steps[before], chain)
    if isinstance(value, contextlib._GeneratorContextManager):
        value, called = value.func, True
    made = getattr(value, "__wrapped__", value)  # what @contextmanager was put on
    if called and isinstance(made, types.FunctionType):
        return made.__code__, made.__globals__
    return value if called else None if value is None else type(value)


def _value(frame: WrittenFrame, load: Any, attributes: list[Any]) -> Any:
    if load.opname in LOADS_GLOBAL:
        return named_value(frame, [load, *attributes])
    found = frame.f_locals.get(load.argval) if load.opname in _LOCALS else None
    for attribute in attributes:
        found = getattr(found, "__dict__", {}).get(attribute.argval)
    return found
