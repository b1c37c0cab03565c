"""Classify the instructions of Python 3.11 to 3.13, and say where each of them leads."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from typing import Any

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
