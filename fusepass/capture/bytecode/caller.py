"""Find the call in the caller's bytecode that runs an inlined function."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from fusepass.capture.bytecode.instructions import EXPRESSIONS, LOADS_LOCAL, SKIPPED, stack_effect
from fusepass.torch_private.dynamo.stack import code_of_local


def caller_of(translator: Any) -> tuple[Any, int] | None:
    """The translator of the calling frame and the index of its call of this function.

    None where the function is not called there by name (``map(f, …)`` calls it too), or that cannot
    be told: what the call leaves on the stack is then not what the function returns.
    """
    parent = getattr(translator, "parent", None)
    if parent is None or parent.instruction_pointer is None:
        return None
    index = parent.instruction_pointer - 1
    loaded = callee_of(parent.instructions, index)
    if loaded is None or not _is_callee(parent, loaded, translator.f_code):
        return None
    return parent, index


def callee_of(instructions: Sequence[Any], index: int) -> Any:
    """The instruction that pushed what the call at ``index`` calls, by stack effects backwards."""
    call = instructions[index]
    if call.opname not in ("CALL", "CALL_KW"):
        return None
    above = call.arg + (call.opname == "CALL_KW")  # Python 3.13: the names lie above the arguments
    for inst in reversed(instructions[:index]):
        if inst.opname in SKIPPED:
            continue
        if not inst.opname.startswith((*EXPRESSIONS, "BUILD_")) or "SUPER" in inst.opname:
            return None
        pushed = _count_pushed(inst)
        if above < pushed:
            if inst.opname == "PUSH_NULL":
                continue
            return inst
        above -= stack_effect(inst)
    return None


def _count_pushed(inst: Any) -> int:
    """How many values a load or an expression pushes."""
    if inst.opname == "LOAD_METHOD" or inst.opname.count("FAST") > 1:
        return 2
    with_slot = stack_effect(inst) if inst.arg is not None else 0
    if inst.opname == "LOAD_GLOBAL":
        return with_slot
    return 1 + with_slot if inst.opname == "LOAD_ATTR" else 1


def _is_callee(caller: Any, loaded: Any, code: Any) -> bool:
    """Whether what an instruction loads is the function with this code."""
    name = loaded.argval
    if loaded.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return bool(name == code.co_name)
    if loaded.opname == "LOAD_GLOBAL":
        held = caller.f_globals.get(name)
        return getattr(inspect.unwrap(held) if callable(held) else held, "__code__", None) is code
    if loaded.opname in (*LOADS_LOCAL, "LOAD_DEREF"):
        return code_of_local(caller, name) is code
    return False
