"""Whether a value just computed goes into a test and nowhere else, read off the bytecode.

``if x.max().item() > 1e4:`` reads a number back only to compare it and jump. Such a number need not
leave the device. One that is stored first is followed through the local name it is stored under.
The walk is one straight line; at anything it does not know it says no.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from typing import Any

_SKIPPED = ("CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP", "PRECALL", "RESUME")
_TESTS = ("POP_JUMP_IF", "POP_JUMP_FORWARD_IF", "POP_JUMP_BACKWARD_IF")
_UNCHANGED = ("TO_BOOL", "UNARY_NOT")
_OVER = ("LOAD_", "PUSH_NULL", "CALL", "BINARY_", "COMPARE_OP", "UNARY_", "TO_BOOL")
_PUSHES_ONLY = (
    "LOAD_CONST",
    "LOAD_DEREF",
    "LOAD_FAST",
    "LOAD_FAST_BORROW",
    "LOAD_FAST_CHECK",
    "LOAD_GLOBAL",
    "LOAD_SMALL_INT",
    "PUSH_NULL",
)
_LOADS_LOCAL = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
_LIMIT = 40


def only_tested(
    instructions: Sequence[Any],
    index: int,
    *,
    arithmetic: bool = True,
    ignored: Callable[[int], bool] = lambda _: False,
) -> bool:
    """Whether what the instruction at ``index`` pushes is only compared and jumped on.

    Args:
        instructions: of the code object, with ``opname``, ``opcode``, ``arg`` and ``argval``.
        index: where the value is pushed.
        arithmetic: whether it may go through arithmetic before it is tested.
        ignored: whether what the instruction at an index loads is of no matter.
    """
    return _only_tested(instructions, index, frozenset(), arithmetic, ignored)


def _only_tested(
    instructions: Sequence[Any],
    index: int,
    names: frozenset[str],
    arithmetic: bool,
    ignored: Callable[[int], bool],
) -> bool:
    above = 0  # values on the stack above the one that is followed
    for inst in instructions[index + 1 : index + _LIMIT]:
        name = inst.opname
        if name in _SKIPPED:
            continue
        if name.startswith(_TESTS):
            return above == 0
        if above == 0 and (name in _UNCHANGED or (arithmetic and name == "UNARY_NEGATIVE")):
            continue
        if above == 0 and name == "STORE_FAST":
            return _loads_only_tested(instructions, inst.argval, names, arithmetic, ignored)
        if above <= 1 and (name == "COMPARE_OP" or (arithmetic and name == "BINARY_OP")):
            above = 0
            continue
        if not name.startswith(_OVER) or "__" in name or name.count("FAST") > 1:
            return False
        if above == 0 and name not in _PUSHES_ONLY:
            return False
        above += dis.stack_effect(inst.opcode, inst.arg, jump=False)
        if above < 1:
            return False  # it was an operand
    return False


def _loads_only_tested(
    instructions: Sequence[Any],
    name: str,
    names: frozenset[str],
    arithmetic: bool,
    ignored: Callable[[int], bool],
) -> bool:
    if name in names:
        return True  # being looked at further up
    uses = [
        (i, inst.opname)
        for i, inst in enumerate(instructions)
        if inst.opname.startswith(("LOAD", "DELETE", "MAKE_CELL"))
        and _names(inst.argval, name)
        and not ignored(i)
    ]
    return bool(uses) and all(
        opname in _LOADS_LOCAL
        and _only_tested(instructions, i, names | {name}, arithmetic, ignored)
        for i, opname in uses
    )


def _names(argval: Any, name: str) -> bool:
    return argval == name or (isinstance(argval, tuple) and name in argval)
