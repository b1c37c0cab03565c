"""Where in the user's source an instruction is that is being traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.report.user_code import is_torchs_file
from fusepass.torch_private.dynamo.compile_state import is_internal_file
from fusepass.torch_private.dynamo.errors.raising import frames_outwards
from fusepass.torch_private.dynamo.source_lines import line_of

Instruction = tuple[Any, int]  # code object and index


@dataclass(frozen=True)
class Place:
    """Where the program asks for something that capture may let into the graph.

    Attributes:
        rule: that decides about it, by its name in the report.
        instruction: the same when the frame starts again.
        position: in the source, the same in resumed functions.
        file, line: for the report.
        dtype: of the tensor, where a number is read from one.
    """

    rule: str
    instruction: Instruction
    position: tuple[Any, ...]
    file: str
    line: int
    dtype: torch.dtype | None = None

    @property
    def everywhere(self) -> tuple[Any, ...]:
        """What it is known by in every frame."""
        return self.rule, self.position, self.dtype

    def decided(self, outcome: Outcome, code: Reason, text: str, treatment: str) -> Decision:
        """What was decided about it, for the report."""
        where = self.file, self.line
        return Decision(Station.CAPTURE, self.rule, outcome, code, text, treatment, *where)


def here(translator: Any, rule: str, dtype: torch.dtype | None = None) -> Place:
    """Where the instruction stands that is being traced."""
    instruction = translator.f_code, translator.instruction_pointer - 1
    where = position(translator, translator.current_instruction)
    return Place(rule, instruction, where, *users_location(translator), dtype)


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
