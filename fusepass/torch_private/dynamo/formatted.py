"""Trace a varying number in an f-string as text. Run on torch 2.11 to 2.15.

Up to torch 2.13 ``text = f"{n}"`` with an argument ``n`` stays that argument: ``text + text`` adds
two numbers, and what returns ``text`` returns a number. Up to torch 2.15 a format is applied to the
number's text, which is aligned otherwise (``f"{n:8}"``) or has no such format (``f"{n:.2f}"``).

Up to torch 2.15 a text that is formatted behind the graph is a key by itself: ``table.get(f"{n}")``
does not find ``"6"`` in ``table`` for an ``n`` of 6, nor does ``"6" in {f"{n}"}``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from fusepass.torch_private.dynamo.stack import realized
from fusepass.torch_private.patches import Patches, Theirs

_CONVERSION = "fusepass_conversion"  # attribute of a number that is shown: the function, or None
_CONVERSIONS = (None, str, repr, ascii)


def hook_formatted(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Make the text of a number a text.

    Args:
        patches: take the hooks out again.
        is_ours: called with a translator; says whether capture has a part in its frame.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.lazy import LazySymNodeFormatString
    from torch._dynamo.variables.tensor import SymNodeVariable

    def format_value(theirs: Theirs, self: Any, spec: Any, flags: int) -> Any:
        number = realized(self.stack[-1])
        if isinstance(number, SymNodeVariable) and is_ours(self):
            shown: Any = copy.copy(number)
            shown.source = None
            setattr(shown, _CONVERSION, _CONVERSIONS[flags & 3])
            self.stack[-1] = shown
        return theirs(self, spec, flags)

    def text(theirs: Theirs, self: Any) -> Any:
        number = self.sym_node_var
        if not hasattr(number, _CONVERSION):
            return theirs(self)
        value, convert = number.evaluate_expr(), getattr(number, _CONVERSION)
        return self.fmt_var.as_python_constant().format(convert(value) if convert else value)

    patches.put(InstructionTranslatorBase, "_format_value", format_value)
    patches.put(LazySymNodeFormatString, "__repr__", text)


def hook_keys(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Know the text of a key, or break the graph where it is looked up.

    Args:
        patches: take the hooks out again.
        is_ours: called with the output graph; says whether the frame is compiled for fusepass.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    def init(theirs: Theirs, self: Any, value: Any) -> None:
        if _varies(value):
            translator = InstructionTranslator.current_tx()
            if is_ours(translator.output):
                value = _as_known(translator, value)
        theirs(self, value)

    patches.put(_key_class(), "__init__", init)


def _key_class() -> Any:
    """What Dynamo wraps keys of dicts and members of sets in."""
    from torch._dynamo.variables import dicts

    try:
        from torch._dynamo.variables.hashable import HashableTracker
    except ImportError:  # up to torch 2.12
        dict_class: Any = dicts.ConstDictVariable
        return dict_class._HashableTracker
    return HashableTracker


def _varies(value: Any) -> bool:
    """Whether a key is, or holds, a text that is formatted behind the graph."""
    from torch._dynamo.variables.misc import StringFormatVariable

    return isinstance(value, StringFormatVariable) or (
        _is_tuple(value) and any(map(_varies, value.items))
    )


def _is_tuple(value: Any) -> bool:
    from torch._dynamo.variables import TupleVariable

    return isinstance(value, TupleVariable)


def _as_known(translator: Any, value: Any) -> Any:
    """A key with its texts as constants; what they show is asked for, as where Python tests it."""
    from torch._dynamo import exc
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.misc import StringFormatVariable
    from torch._dynamo.variables.tensor import SymNodeVariable

    if _is_tuple(value):
        return value.clone(items=[_as_known(translator, one) for one in value.items])
    if isinstance(value, SymNodeVariable):
        return ConstantVariable.create(value.evaluate_expr(translator.output))
    if not isinstance(value, StringFormatVariable):
        return value
    positional = [_as_known(translator, realized(one)) for one in value.sym_args]
    named = {name: _as_known(translator, realized(v)) for name, v in value.sym_kwargs.items()}
    if not all(one.is_python_constant() for one in (*positional, *named.values())):
        exc.unimplemented(
            gb_type="Text of a tensor as a key",
            context=repr(value),
            explanation="the text of a tensor is a key",
            hints=[],
        )
    shown = {name: one.as_python_constant() for name, one in named.items()}
    text = value.format_string.format(*(one.as_python_constant() for one in positional), **shown)
    return ConstantVariable.create(text)
