"""Find the position in the user's source of an instruction that is traced.

A line of a library's helper says little: ``if not bool(condition)`` in a function that checks. What
helps is the line of the program, or of the library's model, that calls it; reports name the helper.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from fusepass.capture.frame_state import Place, any_frame_of
from fusepass.report import log
from fusepass.report.user_code import defines_modules, is_torchs_file, is_users_file
from fusepass.torch_private.dynamo.compile_state import is_entrance, is_internal_file
from fusepass.torch_private.dynamo.errors.raising import frames_outwards
from fusepass.torch_private.dynamo.frame_end import line_of
from fusepass.torch_private.dynamo.print_calls import function_name


def here(translator: Any, rule: str, dtype: torch.dtype | None = None) -> Place:
    """The place of the instruction that is being traced."""
    instruction = translator.f_code, translator.instruction_pointer - 1
    where = position(translator, translator.current_instruction)
    return Place(rule, instruction, where, *users_location(translator), dtype)


class Line(NamedTuple):
    """A line that is run, and the function it is in."""

    file: str
    line: int
    function: str


def _visible(translator: Any, jump: Any) -> tuple[Any, Any]:
    """A jump and its frame; for stand-ins, Dynamo's and ours, the user's call that led there."""
    while is_internal_file(translator.f_code.co_filename) and translator.parent:
        translator = translator.parent
        jump = translator.current_instruction
    return translator, jump


def location(translator: Any, jump: Any) -> tuple[str, int]:
    """File and line of a jump; of the program's own statement, where that has led elsewhere."""
    translator, jump = _visible(translator, jump)
    return in_program(translator, lines_traced(translator, jump))


def lines_traced(translator: Any, jump: Any) -> list[Line]:
    """The lines that are being traced, innermost first."""
    outer = [(one, one.current_instruction) for one in frames_outwards(translator.parent)]
    return [
        Line(one.f_code.co_filename, line_of(one, at), function_name(one.f_code))
        for one, at in [(translator, jump), *outer]
    ]


def in_program(translator: Any, lines: Sequence[Line]) -> tuple[str, int]:
    """File and line of the program's statement among those that are being run.

    If it calls a library's helper, that one is put on record.
    """
    written = [one for one in lines if not is_internal_file(one.file)] or [*lines]
    foreign = [one for one in written if not is_torchs_file(one.file)]
    own = next(filter(_is_programs, foreign), None)
    if own is None and not any(is_users_file(one.file) for one in foreign):
        own = next(filter(_is_programs, _callers()), None)
    if own is None:
        return (foreign or written)[0][:2]
    frame = any_frame_of(translator.output)
    inner = foreign[0] if foreign else own
    if frame is not None and inner is not own and not inner.function.startswith("<"):
        helper = f"{inner.function} ({Path(inner.file).name}:{inner.line})"
        log.inside(frame.compiler, own[:2], inner[:2], helper)
    return own[:2]


def _is_programs(line: Line) -> bool:
    return is_users_file(line.file) or defines_modules(line.file)


def _callers() -> Iterator[Line]:
    """The lines that have called the frame that is being compiled, in compiled code."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not is_entrance(frame.f_code):
        code = frame.f_code
        if not (is_torchs_file(code.co_filename) or code.co_filename.startswith("<")):
            yield Line(code.co_filename, frame.f_lineno or 0, function_name(code))
        frame = frame.f_back


def users_location(translator: Any) -> tuple[str, int]:
    """File and line of the program's statement being traced."""
    return location(translator, translator.current_instruction)


def position(translator: Any, jump: Any) -> tuple[Any, ...]:
    """The source position of an instruction, the same in a function and in what Dynamo resumes.

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
