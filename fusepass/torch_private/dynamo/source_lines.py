"""Find the source line of an instruction, also in code resumed after a graph break.

Run on 2.11 to 2.15.

Code that goes on behind a graph break holds the whole function again. Dynamo takes the lines off
what stands in front of the break, since line numbers may not fall; a loop leads back there.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo.resume_execution import ContinueExecutionCache
from torch._guards import TracingContext


def line_of(translator: Any, instruction: Any) -> int:
    """The line that the program has an instruction on, of the code a translator is tracing."""
    written = _as_written(translator, instruction)
    for one in (instruction,) if written is None else (written, instruction):
        line = getattr(getattr(one, "positions", None), "lineno", None)
        if line:
            return int(line)
    return int(translator.lineno)


def tell_line(translator: Any) -> None:
    """Have torch's errors name the line a translator was put back to: it tells of new ones only."""
    code = translator.f_code
    TracingContext.set_current_loc(code.co_filename, translator.lineno, code.co_name)


def _as_written(translator: Any, instruction: Any) -> Any:
    """The instruction in the code as the program has it, if Dynamo goes on in that; else None."""
    known = ContinueExecutionCache.generated_code_metadata
    if translator.f_code not in known:
        return None
    written, traced = known[translator.f_code].instructions, translator.instructions
    index = next((i for i, one in enumerate(traced) if one is instruction), 0)
    behind = len(traced) - index  # what Dynamo adds comes in front
    if behind > len(written):
        return None
    tails = zip(written[-behind:], traced[-behind:], strict=True)
    if not all(_is_same(one, other) for one, other in tails):
        return None
    return written[-behind]


def _is_same(one: Any, other: Any) -> bool:
    jumps = "JUMP" in one.opname and "JUMP" in other.opname  # may be encoded in another way
    return bool(one.opname == other.opname or jumps)
