"""Trace a varying number in an f-string as text. Run on torch 2.11 to 2.15.

Up to torch 2.13 ``text = f"{n}"`` with an argument ``n`` stays that argument: ``text + text`` adds
two numbers, and what returns ``text`` returns a number. Up to torch 2.15 a format is applied to the
number's text, which is aligned otherwise (``f"{n:8}"``) or has no such format (``f"{n:.2f}"``).
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
