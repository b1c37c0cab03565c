"""Read instructions of Python 3.11 to 3.13: their kinds, where they lead, what a call calls."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Sequence
from typing import Any

from fusepass.torch_private.dynamo.stack import code_of_local

RETURNS = ("RETURN_VALUE", "RETURN_CONST")
ENDS = (*RETURNS, "RAISE_VARARGS", "RERAISE")
# Behind these the next instruction does not follow.
NO_FALLTHROUGH = frozenset(
    (
        *ENDS,
        *("JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD_NO_INTERRUPT"),
    )
)
LOADS_LOCAL = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
# These neither move the stack nor do anything that matters here.
SKIPPED = ("CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP", "PRECALL", "RESUME")
EXPRESSIONS = ("LOAD_", "PUSH_NULL", "CALL", "BINARY_", "COMPARE_OP", "UNARY_")


def handler_of(instruction: Any) -> Any:
    """The entry of the exception table around an instruction, or None."""
    return getattr(instruction, "exn_tab_entry", None)


def successors(instructions: Sequence[Any]) -> list[tuple[int | None, int | None, int | None]]:
    """The indices that each instruction leads to: the next one, its jump, its handler."""
    index = {id(one): at for at, one in enumerate(instructions)}

    def at(target: Any) -> int | None:
        return None if target is None else index[id(target)]

    return [
        (
            i + 1 if one.opname not in NO_FALLTHROUGH and i + 1 < len(instructions) else None,
            at(one.target),
            at(getattr(handler_of(one), "target", None)),
        )
        for i, one in enumerate(instructions)
    ]


def names_of(instruction: Any) -> tuple[Any, ...]:
    """The names in an instruction; Python 3.13 joins two that follow each other."""
    named = instruction.argval
    return named if isinstance(named, tuple) else (named,)


def stack_effect(instruction: Any, *, jump: bool = False) -> int:
    """How much higher the stack is behind an instruction.

    Dynamo drops the argument where it is but the place of a name or constant. Python 3.11 counts
    part of a call for ``PRECALL``.
    """
    if instruction.opname == "CALL":
        return -int(instruction.arg) - 1
    has_argument = instruction.opcode >= dis.HAVE_ARGUMENT
    return dis.stack_effect(
        instruction.opcode, (instruction.arg or 0) if has_argument else None, jump=jump
    )


def swapped(stack: list[Any], depth: int) -> tuple[Any, ...]:
    """The stack after ``SWAP``."""
    stack[-depth], stack[-1] = stack[-1], stack[-depth]
    return tuple(stack)


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
