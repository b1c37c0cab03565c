"""Find the local names that may be read after an instruction.

Classic backward data flow over the instructions: live-in = reads + (live-out − writes), to a fixed
point. Exact for straight-line rebinding (a name written before it is read again is dead), where
Dynamo's own
``livevars_analysis`` errs towards live: a branch inside which a scratch name is bound would be
refused for it.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Sequence
from types import CodeType
from typing import Any

_LOCAL = frozenset(dis.haslocal)
_FREE = frozenset(dis.hasfree)
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_JUMPS_ALWAYS = (
    "JUMP_FORWARD",
    "JUMP_BACKWARD",
    "JUMP_ABSOLUTE",
    "JUMP_BACKWARD_NO_INTERRUPT",
    "JUMP",
)

_cache: weakref.WeakKeyDictionary[CodeType, tuple[int, list[frozenset[str]]]] = (
    weakref.WeakKeyDictionary()
)


def live_names(code: CodeType, instructions: Sequence[Any], index: int) -> frozenset[str]:
    """Names of locals and cells that may be read at or after instruction ``index``."""
    cached = _cache.get(code)
    if cached is None or cached[0] != len(instructions):
        cached = (len(instructions), analyse(instructions))
        _cache[code] = cached
    return cached[1][index]


def analyse(instructions: Sequence[Any]) -> list[frozenset[str]]:
    """Live-in set of every instruction.

    Args:
        instructions: objects with ``opcode``, ``opname``, ``argval``, ``target`` and, for exception
            handlers, ``exn_tab_entry.target``.
    """
    index = {id(inst): i for i, inst in enumerate(instructions)}
    live: list[frozenset[str]] = [frozenset()] * len(instructions)
    successors = [
        _successors(i, inst, index, len(instructions)) for i, inst in enumerate(instructions)
    ]
    effects = [_reads_and_writes(inst) for inst in instructions]
    changed = True
    while changed:
        changed = False
        for i in range(len(instructions) - 1, -1, -1):
            out = frozenset().union(*(live[s] for s in successors[i]))
            reads, writes = effects[i]
            now = reads | (out - writes)
            if now != live[i]:
                live[i] = now
                changed = True
    return live


def _successors(i: int, inst: Any, index: dict[int, int], count: int) -> list[int]:
    found = []
    if inst.target is not None:
        found.append(index[id(inst.target)])
    if inst.opname not in _ENDS and inst.opname not in _JUMPS_ALWAYS and i + 1 < count:
        found.append(i + 1)
    handler = getattr(getattr(inst, "exn_tab_entry", None), "target", None)
    if handler is not None:
        found.append(index[id(handler)])
    return found


def _reads_and_writes(inst: Any) -> tuple[frozenset[str], frozenset[str]]:
    if inst.opcode not in _LOCAL and inst.opcode not in _FREE:
        return frozenset(), frozenset()
    names = inst.argval if isinstance(inst.argval, tuple) else (inst.argval,)
    name_set = frozenset(n for n in names if isinstance(n, str))
    if inst.opname.startswith("STORE") and "LOAD" not in inst.opname:
        return frozenset(), name_set
    return name_set, frozenset()
