"""Programs for Hypothesis, and the check of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusepass.errors import ArgumentType
from tests.fuzz.draw import HypothesisDraw
from tests.fuzz.examine import examine
from tests.fuzz.generate import program
from tests.fuzz.program import Program

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


class ProgramDiffers(AssertionError):
    """A program does something else compiled than in eager mode.

    Attributes:
        program: the program.
        differences: what differs, one sentence for each context.
    """

    def __init__(self, found: Program, differences: list[str]) -> None:
        super().__init__("\n".join([*differences, "", found.source]))
        self.program = found
        self.differences = differences


def programs() -> SearchStrategy[Program]:
    """Random programs with branches on tensors; a failing one shrinks to a short one."""
    from hypothesis import strategies as st

    @st.composite
    def drawn(draw: DrawFn) -> Program:
        return program(HypothesisDraw(draw))

    return drawn()


def check_program(program: Program, *, codegen: str = "eager") -> None:
    """Run a program in eager mode and compiled, and compare all that a caller can see.

    Each is called with all input sets of the program on one compiled callable, in inference and,
    where the program trains, in training with backward. What ``backend="eager"`` gets wrong as
    well is not held against fusepass.

    Args:
        program: of :func:`programs`, or :class:`Program` with a text of your own.
        codegen: ``"eager"`` compares bit by bit, ``"inductor"`` by the error rule.

    Raises:
        ProgramDiffers: with the differences and the program's text.
        ArgumentType: it was given no program, or one whose text defines no ``make`` or ``inputs``.
    """
    given: object = program
    if not isinstance(given, Program):
        expected = "a tests.fuzz.program.Program; one with a text of yours is Program(text)"
        raise ArgumentType("the first argument of check_program", given, expected)
    failures = [f for f in examine(program, codegen=codegen).failures if not f.dynamo]
    if failures:
        raise ProgramDiffers(program, [str(failure) for failure in failures])
