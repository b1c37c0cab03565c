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

from fusepass.capture.bytecode.instructions import names_of, successors

_LOCAL = frozenset(dis.haslocal)
_FREE = frozenset(dis.hasfree)
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
    """Live-in set of every instruction."""
    live: list[frozenset[str]] = [frozenset()] * len(instructions)
    leads = [[at for at in found if at is not None] for found in successors(instructions)]
    effects = [_reads_and_writes(inst) for inst in instructions]
    changed = True
    while changed:
        changed = False
        for i in range(len(instructions) - 1, -1, -1):
            out = frozenset().union(*(live[s] for s in leads[i]))
            reads, writes = effects[i]
            now = reads | (out - writes)
            if now != live[i]:
                live[i] = now
                changed = True
    return live


def _reads_and_writes(inst: Any) -> tuple[frozenset[str], frozenset[str]]:
    if inst.opcode not in _LOCAL and inst.opcode not in _FREE:
        return frozenset(), frozenset()
    name_set = frozenset(n for n in names_of(inst) if isinstance(n, str))
    if inst.opname.startswith("STORE") and "LOAD" not in inst.opname:
        return frozenset(), name_set
    return name_set, frozenset()
