"""Which loads in a code object only feed a call of print or the like, read off the bytecode."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from fusepass import torch_private

_NAMES = frozenset({"print", "warn"})
_ATTRIBUTES = torch_private.METHODS | _NAMES
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")


def spoken(code: Any, instructions: Sequence[Any]) -> frozenset[int]:
    """Indices of the instructions from a load of print or the like up to its call.

    These go by the name; what really is called is known when the call is traced.

    Args:
        code: the code object.
        instructions: of it, with ``opname``, ``argval`` and ``positions``.
    """
    return _spoken(code, tuple(_facts(inst) for inst in instructions))


def _facts(instruction: Any) -> tuple[str, Any, Any]:
    p = instruction.positions
    start = None if p is None or p.lineno is None else (p.lineno, p.col_offset)
    name = instruction.argval if isinstance(instruction.argval, str) else None
    return instruction.opname, name, start


@functools.lru_cache(maxsize=256)
def _spoken(_: Any, instructions: tuple[tuple[str, Any, Any], ...]) -> frozenset[int]:
    found: set[int] = set()
    for index, (opname, name, start) in enumerate(instructions):
        names = _ATTRIBUTES if opname in ("LOAD_ATTR", "LOAD_METHOD") else _NAMES
        if start is None or not opname.startswith("LOAD_") or name not in names:
            continue
        for end in range(index + 1, len(instructions)):
            # A call starts in the source where what it calls does.
            if instructions[end][0] in _CALLS and instructions[end][2] == start:
                found.update(range(index, end + 1))
                break
    return frozenset(found)
