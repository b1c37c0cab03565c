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
from typing import Any, NoReturn

from fusepass.torch_private.dynamo.compile_state import is_dynamos_file
from fusepass.torch_private.dynamo.stack import constant_of, is_any_tensor, number_node, realized
from fusepass.torch_private.patches import Patches, Theirs

_NUMBERS = (bool, int, float)


@dataclass(frozen=True)
class IdentityHandlers:
    """What is called where values are compared as objects.

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
    _hook_same(patches, handlers.on_same, handlers.on_kind)
    _hook_equal(patches, handlers.on_equal)
    _hook_contains(patches, handlers.on_contains)


def _hook_same(
    patches: Patches,
    on_same: Callable[[Any, Any, Any, bool], Any],
    on_kind: Callable[[Any, Any], None],
) -> None:
    from torch._dynamo import symbolic_convert
    from torch._dynamo.variables import BuiltinVariable

    table = symbolic_convert.compare_op_handlers  # of the instruction, apart from the function

    def compared(negated: bool, of_instruction: Any) -> Callable[..., Any]:
        @functools.wraps(of_instruction)
        def handler(tx: Any, args: Any, kwargs: Any) -> Any:
            made = None
            # Dynamo's own Python asks for equality next, where Python's C code would.
            if not is_dynamos_file(tx.f_code.co_filename):
                made = on_same(tx, args[0], args[1], negated)
            return of_instruction(tx, args, kwargs) if made is None else made

        return handler

    def call_function(theirs: Theirs, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        made = None
        if (self.fn is type or self.fn is isinstance) and args:
            on_kind(tx, args[0])
        negated = self.fn is operator.is_not
        if (negated or self.fn is operator.is_) and len(args) == 2 and not kwargs:
            made = on_same(tx, args[0], args[1], negated)
        return theirs(self, tx, args, kwargs) if made is None else made

    for name, negated in (("is", False), ("is not", True)):
        patches.put_into(table, name, functools.partial(compared, negated))
    patches.put(BuiltinVariable, "call_function", call_function)


def _hook_equal(patches: Patches, on_equal: Callable[[Any, Any, Any], list[Any]]) -> None:
    from torch._dynamo import symbolic_convert

    def compared(of_instruction: Any) -> Callable[..., Any]:
        @functools.wraps(of_instruction)
        def handler(tx: Any, args: Any, kwargs: Any) -> Any:
            return of_instruction(tx, on_equal(tx, args[0], args[1]), kwargs)

        return handler

    for name in ("==", "!="):
        patches.put_into(symbolic_convert.compare_op_handlers, name, compared)


def _hook_contains(patches: Patches, on_contains: Callable[[Any, list[Any], Any], Any]) -> None:
    from torch._dynamo import utils
    from torch._dynamo.variables import lists

    def contains(
        theirs: Theirs, items: Any, search: Any, tx: Any, *rest: Any, **kwargs: Any
    ) -> Any:
        held = list(items)
        made = on_contains(tx, held, search)
        return theirs(held, search, tx, *rest, **kwargs) if made is None else made

    for owner in (utils, lists):
        patches.put(owner, "iter_contains", contains)


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
    from torch._dynamo.variables import LazyVariableTracker

    if isinstance(value, LazyVariableTracker) and not value.is_realized():
        return []  # it came into the frame as it is
    if constant_of(value)[0]:
        return []
    inner = getattr(value, "_base_vt", None)  # of an object whose class is derived from a container
    items = getattr(value if inner is None else inner, "items", None)
    if isinstance(items, dict):
        return [*(getattr(key, "vt", key) for key in items), *items.values()]
    return list(items) if isinstance(items, (list, tuple)) else []


def equal(translator: Any, left: Any, right: Any) -> Any:
    """Trace ``left == right``."""
    from torch._dynamo.symbolic_convert import compare_op_handlers

    return compare_op_handlers["=="](translator, [left, right], {})


def decided(value: Any) -> Any:
    """A truth value about numbers that came into the frame, decided and guarded on."""
    from torch._dynamo.variables import ConstantVariable

    return ConstantVariable.create(bool(value.evaluate_expr()))


def either(translator: Any, left: Any, right: Any) -> Any:
    """Trace ``left | right``."""
    from torch._dynamo.variables import BuiltinVariable

    return BuiltinVariable(operator.or_).call_function(translator, [left, right], {})


def break_graph(what: str, why: str) -> NoReturn:
    """Break the graph at the instruction being traced.

    Raises:
        Unsupported: of Dynamo.
    """
    from torch._dynamo.exc import unimplemented

    unimplemented(gb_type=what, context="", explanation=why, hints=[])
