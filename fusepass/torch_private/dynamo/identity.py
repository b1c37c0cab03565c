"""Hook ``is``, ``in`` and ``type``, and compare tracked values as objects.

Run on torch 2.11 to 2.15.

For Dynamo a value that it does not know is another object than every constant, and before 2.15 a
constant is in a container only as one of its constants. Plain Dynamo has no number there that it
does not know: it breaks the graph where one is read.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._dynamo import utils
from torch._dynamo.symbolic_convert import compare_op_handlers
from torch._dynamo.variables import BuiltinVariable, lists

from fusepass.torch_private.dynamo.compile_state import is_dynamos_file
from fusepass.torch_private.dynamo.stack import (
    constant,
    constant_of,
    is_any_tensor,
    is_unused,
    number_node,
    realized,
)
from fusepass.torch_private.patches import Patches, Theirs

_NUMBERS = (bool, int, float)


@dataclass(frozen=True)
class IdentityHandlers:
    """Functions that are called where values are compared as objects.

    Attributes:
        on_same: called as ``(translator, left, right, negated)`` at ``is`` and ``is not``; gives
            the tracked result, or None to leave it to Dynamo.
        on_equal: called as ``(translator, left, right)`` at ``==`` and ``!=``; gives the operands.
        on_kind: called as ``(translator, value)`` before ``type(value)`` and ``isinstance`` of it.
        on_contains: called as ``(translator, items, searched)`` at ``searched in items``, a list or
            what Dynamo takes for one; the same.
    """

    on_same: Callable[[Any, Any, Any, bool], Any]
    on_equal: Callable[[Any, Any, Any], list[Any]]
    on_kind: Callable[[Any, Any], None]
    on_contains: Callable[[Any, list[Any], Any], Any]


def hook_identity(patches: Patches, handlers: IdentityHandlers) -> None:
    """Put handlers in front of ``is``, ``in`` and ``type``."""

    def same(negated: bool, theirs: Theirs, tx: Any, args: Any, kwargs: Any) -> Any:
        made = None
        # Dynamo's own Python asks for equality next, where Python's C code would.
        if not is_dynamos_file(tx.f_code.co_filename):
            made = handlers.on_same(tx, args[0], args[1], negated)
        return theirs(tx, args, kwargs) if made is None else made

    def equals(theirs: Theirs, tx: Any, args: Any, kwargs: Any) -> Any:
        return theirs(tx, handlers.on_equal(tx, args[0], args[1]), kwargs)

    def call_function(theirs: Theirs, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        made = None
        if (self.fn is type or self.fn is isinstance) and args:
            handlers.on_kind(tx, args[0])
        negated = self.fn is operator.is_not
        if (negated or self.fn is operator.is_) and len(args) == 2 and not kwargs:
            made = handlers.on_same(tx, args[0], args[1], negated)
        return theirs(self, tx, args, kwargs) if made is None else made

    def contains(
        theirs: Theirs, items: Any, search: Any, tx: Any, *rest: Any, **kwargs: Any
    ) -> Any:
        held = list(items)
        made = handlers.on_contains(tx, held, search)
        return theirs(held, search, tx, *rest, **kwargs) if made is None else made

    # The instructions have a table apart from the functions.
    patches.put_into(compare_op_handlers, "is", functools.partial(same, False))
    patches.put_into(compare_op_handlers, "is not", functools.partial(same, True))
    patches.put_into(compare_op_handlers, "==", equals)
    patches.put_into(compare_op_handlers, "!=", equals)
    patches.put(BuiltinVariable, "call_function", call_function)
    patches.put(utils, "iter_contains", contains)
    patches.put(lists, "iter_contains", contains)


def may_be_number(value: Any) -> bool:
    """Whether a tracked value may be a Python number: bool, int or float, of no subclass."""
    value = realized(value)
    constant, python = constant_of(value)
    if constant:
        return type(python) in _NUMBERS
    if number_node(value) is not None:
        return True
    if is_any_tensor(value) and type(value).__name__ != "UnspecializedPythonVariable":
        return False
    try:
        return value.python_type() in _NUMBERS
    except NotImplementedError:
        return True  # it cannot tell


def other_number(value: Any) -> Any:
    """The number that a member of an ``IntEnum`` is, which Dynamo takes for no number; or None."""
    value = realized(value)
    constant, python = constant_of(value)
    held: Any = python if constant else vars(value).get("value")
    kind: Any = type(held)
    if not isinstance(held, (int, float)) or kind in _NUMBERS:
        return None
    base: Any = int if isinstance(held, int) else float
    return base(held) if (kind.__eq__, kind.__ne__) == (base.__eq__, base.__ne__) else None


def parts_of(value: Any) -> list[Any]:
    """The tracked values that a tracked container holds; none for anything else."""
    if is_unused(value) or constant_of(value)[0]:
        return []  # an unused one came into the frame as it is
    inner = getattr(value, "_base_vt", None)  # of an object whose class is derived from a container
    items = getattr(value if inner is None else inner, "items", None)
    if isinstance(items, dict):
        return [*(getattr(key, "vt", key) for key in items), *items.values()]
    return list(items) if isinstance(items, (list, tuple)) else []


def equal(translator: Any, left: Any, right: Any) -> Any:
    """Trace ``left == right``."""
    return compare_op_handlers["=="](translator, [left, right], {})


def decided(value: Any) -> Any:
    """A truth value about numbers that came into the frame, decided and guarded on."""
    return constant(bool(value.evaluate_expr()))
