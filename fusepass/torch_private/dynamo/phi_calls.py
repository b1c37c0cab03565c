"""Tell the calls that hand a value on from those that look at it. Run on torch 2.11 to 2.15."""

from __future__ import annotations

from typing import Any

from fusepass.torch_private.dynamo.stack import realized

# Whose calls Dynamo traces into: there the value is looked at, or not.
_INLINED = frozenset(
    """
    FunctoolsPartialVariable NestedUserFunctionVariable UnspecializedBuiltinNNModuleVariable
    UnspecializedNNModuleVariable UserFunctionVariable UserMethodVariable
    """.split()
)
_KEPT = frozenset("append appendleft insert setdefault __setitem__".split())


def hands_on(translator: Any, instruction: Any, places: list[int]) -> bool:
    """Whether a call only hands on the values at some places of the stack."""
    if instruction.opname not in ("CALL", "CALL_KW"):
        return False
    extra = 1 if instruction.opname == "CALL_KW" else 0
    bottom = len(translator.stack) - instruction.arg - 2 - extra
    if any(len(translator.stack) + place < bottom + 2 for place in places):
        return False  # what is called is one of two itself
    callee = [realized(value) for value in translator.stack[bottom : bottom + 2]]
    return any(type(one).__name__ in _INLINED or _keeps(one) for one in callee)


def _keeps(callee: Any) -> bool:
    """Whether it is a method of a container that only keeps what it is given."""
    name = getattr(callee, "name", None)
    held = type(getattr(callee, "obj", None)).__name__
    return name in _KEPT and held in ("ListVariable", "DequeVariable", "ConstDictVariable")
