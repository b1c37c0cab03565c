"""Decide from the bytecode whether Python will need the number under a local name.

``if at >= 0:``, ``xs[at]`` and ``range(at)`` need the number itself. They are looked for on the
straight way from an instruction on: arms, and the bodies of loops, are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

from fusepass.capture.bytecode.control_flow import EXIT, facts_of, region_of
from fusepass.capture.bytecode.instructions import LOADS_LOCAL, SKIPPED, names_of, successors
from fusepass.capture.bytecode.natural_loops import loops_of

_TRUTH = ("TO_BOOL", "UNARY_NOT", "POP_JUMP_IF", "POP_JUMP_FORWARD_IF", "POP_JUMP_BACKWARD_IF")
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")


def is_in_loop(code: CodeType, instructions: Sequence[Any], index: int) -> bool:
    """Whether an instruction is part of a loop of its function."""
    return any(index in loop.members for loop in loops_of(code, instructions))


def needed_by_python(code: CodeType, instructions: Sequence[Any], index: int, name: str) -> bool:
    """Whether each way from an instruction on comes to one that needs the number under a name."""
    leads = facts_of(successors, code, instructions)
    region = region_of(code, instructions)
    at: int | None = index
    while at is not None:
        if name in names_of(instructions[at]) and "FAST" in instructions[at].opname:
            if not instructions[at].opname.startswith("LOAD"):
                return False
            if _is_needed(instructions, at, name):
                return True
        after, jump, _ = leads[at]
        if after is None or jump is None:
            following = jump if after is None else after
        else:
            following = region.join_of(at)
            if _is_bound(instructions[at:following], name):
                return False
        at = following if following is not None and at < following != EXIT else None
    return False


def _is_bound(instructions: Sequence[Any], name: str) -> bool:
    return any(
        name in names_of(inst) and inst.opname.startswith(("STORE_", "DELETE_"))
        for inst in instructions
    )


def _is_needed(instructions: Sequence[Any], at: int, name: str) -> bool:
    """Whether what looks at the number that is loaded at an index must know it."""
    one, two = _after(instructions, at)
    if instructions[at].opname not in LOADS_LOCAL:  # it loads two, of which the last is the index
        return names_of(instructions[at])[-1] == name and one == "BINARY_SUBSCR"
    if one == "BINARY_SUBSCR" or (one.startswith(_TRUTH) and not one.endswith("NONE")):
        return True
    before = instructions[at - 1] if at else None
    if one in _CONSTANTS and two == "COMPARE_OP":
        return _is_number(instructions[at + 1])
    if one == "COMPARE_OP":
        return before is not None and before.opname in _CONSTANTS and _is_number(before)
    called = one == "CALL" and before is not None and before.opname == "LOAD_GLOBAL"
    return called and before.argval == "range"  # type: ignore[union-attr]


def _after(instructions: Sequence[Any], at: int) -> tuple[str, str]:
    """The names of the two instructions that follow one, with ``""`` for none."""
    rest = [inst.opname for inst in instructions[at + 1 : at + 8] if inst.opname not in SKIPPED]
    one, two, *_ = *rest, "", ""
    return one, two


def _is_number(constant: Any) -> bool:
    return isinstance(constant.argval, (int, float))
