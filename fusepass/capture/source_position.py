"""Where in the user's source an instruction is that is being traced."""

from __future__ import annotations

from typing import Any

from fusepass.report.user_code import is_torchs_file
from fusepass.torch_private.dynamo.compile_state import is_internal_file
from fusepass.torch_private.dynamo.errors.raising import frames_outwards
from fusepass.torch_private.dynamo.source_lines import line_of


def _visible(translator: Any, jump: Any) -> tuple[Any, Any]:
    """A jump and its frame; for stand-ins, Dynamo's and ours, the user's call that led there."""
    while is_internal_file(translator.f_code.co_filename) and translator.parent:
        translator = translator.parent
        jump = translator.current_instruction
    return translator, jump


def location(translator: Any, jump: Any) -> tuple[str, int]:
    """File and line of a jump; of the program's own statement, where that has led into torch."""
    translator, jump = _visible(translator, jump)
    if is_torchs_file(translator.f_code.co_filename):
        frames = frames_outwards(translator)
        own = (one for one in frames if not is_torchs_file(one.f_code.co_filename))
        caller = next(own, None)
        if caller is not None:
            translator, jump = caller, caller.current_instruction
    return translator.f_code.co_filename, line_of(translator, jump)


def users_location(translator: Any) -> tuple[str, int]:
    """File and line of the program's statement being traced."""
    return location(translator, translator.current_instruction)


def position(translator: Any, jump: Any) -> tuple[Any, ...]:
    """Where in the source an instruction is, the same in a function and in what Dynamo resumes.

    The jumps of one ``a or b or c`` share their position; counted from the end, where resumed code
    is the same, they differ.
    """
    translator, jump = _visible(translator, jump)
    p = getattr(jump, "positions", None)
    if p is None or p.lineno is None:
        return (translator.f_code.co_filename, translator.lineno, translator.instruction_pointer)
    later = translator.instructions[translator.instruction_pointer :]
    ordinal = sum(i.opname == jump.opname and i.positions == p for i in later)
    span = (p.lineno, p.end_lineno, p.col_offset, p.end_col_offset)
    return (translator.f_code.co_filename, *span, ordinal)
