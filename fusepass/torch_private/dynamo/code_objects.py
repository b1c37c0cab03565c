"""Build code objects of instructions as Dynamo holds them. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any

from torch._dynamo.bytecode_transformation import (
    add_push_null,
    cleaned_instructions,
    create_call_function,
    create_instruction,
    transform_code_object,
)

_VARIABLE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def make_code(
    like: CodeType,
    parameters: Sequence[str],
    write: Callable[[Sequence[Any]], list[Any]],
) -> CodeType:
    """A code object with the names, constants and lines of another, without cells.

    Args:
        like: the other one.
        parameters: names of the positional parameters.
        write: given the instructions of ``like``, which may be used, gives those of the new one.
    """

    def transform(instructions: list[Any], options: dict[str, Any]) -> None:
        written = write(instructions)
        for one in written:
            one.exn_tab_entry = None
        instructions[:] = written
        locals_used = [one.argval for one in written if "_FAST" in one.opname]
        names = dict.fromkeys([*parameters, *(n for n in locals_used if isinstance(n, str))])
        options |= {
            "co_argcount": len(parameters),
            "co_posonlyargcount": 0,
            "co_kwonlyargcount": 0,
            "co_varnames": tuple(names),
            "co_cellvars": (),
            "co_freevars": (),
            "co_flags": options["co_flags"] & ~_VARIABLE,
        }

    made, _ = transform_code_object(like, transform)
    return made


def as_held(code: CodeType) -> list[Any]:
    """The instructions of a code object as Dynamo holds them, in the same places."""
    held: list[Any] = cleaned_instructions(code)
    return held


def copied(instruction: Any) -> Any:
    """A copy of an instruction, to be put elsewhere."""
    return copy.copy(instruction)


def made_like(instruction: Any, opname: str, **given: Any) -> Any:
    """A new instruction at the source position of another."""
    made = create_instruction(opname, **given)
    made.positions, made.starts_line = instruction.positions, instruction.starts_line
    return made


def called(instruction: Any, loads: list[Any]) -> list[Any]:
    """Instructions that load a function, made such that it can be called."""
    return list(_at(instruction, add_push_null(loads)))


def call_of(instruction: Any, count: int) -> list[Any]:
    """Instructions that call what :func:`called` has loaded, with ``count`` arguments."""
    return list(_at(instruction, create_call_function(count, False)))


def _at(instruction: Any, made: Iterable[Any]) -> Iterable[Any]:
    for one in made:
        one.positions, one.starts_line = instruction.positions, instruction.starts_line
        yield one
