"""Which conditional jumps a program takes in eager, read off its bytecode while it runs.

A program that tests numbers read from tensors asks no tensor: what it does ask are the jumps of the
corpus's own functions, all of which are such tests.
"""

from __future__ import annotations

import contextlib
import dis
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Place = tuple[str, int, int]


@contextlib.contextmanager
def jumps_taken(folder: Path) -> Iterator[dict[Place, set[bool]]]:
    """Inside, (file, line, instruction) of conditional jumps in code of ``folder``: taken or not."""
    found: dict[Place, set[bool]] = {}
    jumps: dict[CodeType, dict[int, tuple[int, int]]] = {}
    pending: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if Path(code.co_filename).parent != folder:
            return None
        if code not in jumps:
            jumps[code] = _conditional_jumps(code)
        frame.f_trace_opcodes = True
        if event == "opcode":
            at = pending.pop(frame, None)
            if at is not None:
                line, target = jumps[code][at]
                place = (code.co_filename, line, at)
                found.setdefault(place, set()).add(frame.f_lasti == target)
            if frame.f_lasti in jumps[code]:
                pending[frame] = frame.f_lasti
        return trace

    before = sys.gettrace()
    # Python 3.12 looks only once, when tracing begins, whether any frame wants its instructions.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)


def _conditional_jumps(code: CodeType) -> dict[int, tuple[int, int]]:
    """Line and target of each conditional jump, by its offset."""
    found: dict[int, tuple[int, int]] = {}
    for inst in dis.get_instructions(code):
        if inst.opname.startswith("POP_JUMP") and inst.positions is not None:
            found[inst.offset] = (inst.positions.lineno or 0, int(inst.argval))
    return found
