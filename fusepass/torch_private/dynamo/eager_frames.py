"""Find the eager frames around the frame being compiled, and have some frames run in eager.

A frame that Dynamo gives up runs as it is, and what it calls is compiled as frames of their own.
Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy
from torch._dynamo import convert_frame, eval_frame, guards, symbolic_convert
from torch._dynamo.bytecode_transformation import cleaned_instructions
from torch._dynamo.types import ConvertFrameReturn

from fusepass.torch_private.patches import IsOurs, Patches, Theirs


@dataclass(frozen=True)
class Written:
    """The instructions of a code object, as Dynamo reads it, and where each of them is."""

    instructions: list[Any]
    indexof: dict[Any, int]


@functools.lru_cache(maxsize=256)
def written(code: CodeType) -> Written:
    """A code object as Dynamo reads it."""
    steps = cleaned_instructions(code)
    return Written(steps, {one: index for index, one in enumerate(steps)})


@dataclass(frozen=True)
class WrittenFrame:
    """Code of the program as Dynamo reads it, with a place in it.

    Attributes:
        f_code: the code object.
        written: its instructions.
        current_instruction: the place.
        f_globals, f_locals: the names of the frame; no locals where it does not run.
    """

    f_code: CodeType
    written: Written
    current_instruction: Any
    f_globals: dict[str, Any]
    f_locals: dict[str, Any] = field(default_factory=dict)

    @property
    def instructions(self) -> list[Any]:
        """Dynamo's."""
        return self.written.instructions

    @property
    def indexof(self) -> dict[Any, int]:
        """The index of each instruction."""
        return self.written.indexof


@functools.lru_cache(maxsize=4096)
def _place(code: CodeType, last: int) -> int | None:
    """Which instruction of a frame ran last."""
    steps = enumerate(written(code).instructions)
    places = [(i.offset, at) for at, i in steps if i.offset is not None and i.offset <= last]
    return max(places)[1] if places else None


def eager_frames() -> list[WrittenFrame]:
    """The program's frames around the one being compiled, up to where torch.compile was called.

    Without those whose code Dynamo made, which hold no handlers of the program.
    """
    return [one for one in map(as_written, _callers()) if one is not None]


def as_written(frame: FrameType, *, with_locals: bool = True) -> WrittenFrame | None:
    """A frame in eager as Dynamo reads its code; None where it did not begin yet.

    Without ``with_locals`` Python does not copy them all.
    """
    code = frame.f_code
    now = _place(code, frame.f_lasti)
    if now is None:
        return None
    read = written(code)
    values = frame.f_locals if with_locals else {}
    return WrittenFrame(code, read, read.instructions[now], frame.f_globals, values)


_CALLING = eval_frame.__file__  # the file in which compiled code is called
# Files whose frames end a walk outwards.
_ENDS = frozenset((convert_frame.__file__, _CALLING, guards.__file__))
_SAY_WHY = {"check_verbose", "get_guard_fail_reason_helper"}  # functions of Dynamo


@functools.lru_cache(maxsize=4096)
def _is_in_a_try(code: CodeType, last: int) -> bool:
    now = _place(code, last)
    held = None if now is None else written(code).instructions[now]
    return getattr(held, "exn_tab_entry", None) is not None


def frames_with_handlers() -> list[FrameType]:
    """The program's frames around a compiled one that is about to run, if they stand in a ``try``.

    Called by a guard, before each call of the compiled frame, and once more by Dynamo where the
    frame is compiled again, to find the guard that failed. Empty where that guard is tried while
    the frame is compiled.
    """
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename in _ENDS:
            if code.co_name in _SAY_WHY:
                frame = _outside(frame)
                continue
            return found if code.co_filename == _CALLING else []
        in_a_try = code.co_exceptiontable and _is_in_a_try(code, frame.f_lasti)
        if in_a_try and code not in convert_frame.output_codes:
            found.append(frame)
        frame = frame.f_back
    return []


def _callers() -> list[FrameType]:
    found: list[FrameType] = []
    frame = _outside(sys._getframe(1))
    while frame is not None and frame.f_code.co_filename != _CALLING:
        if frame.f_code not in convert_frame.output_codes and frame.f_code.co_filename != __file__:
            found.append(frame)
        frame = frame.f_back
    return found if frame is not None else []


def _outside(frame: FrameType | None) -> FrameType | None:
    """The frame that Python was in when it came to Dynamo with one to be compiled."""
    compiling = convert_frame.__file__
    while frame is not None:
        code, outer = frame.f_code, frame.f_back
        entered = outer is None or outer.f_code.co_filename != compiling
        if entered and (code.co_filename, code.co_name) == (compiling, "__call__"):
            return outer
        frame = outer
    return None


def hook_frames(patches: Patches, runs_as_it_is: Callable[[Any, Any], bool]) -> None:
    """Have some frames, and all that they call, run in eager for good."""

    def asking(theirs: Theirs, self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        if not runs_as_it_is(self, frame):
            return theirs(self, frame, *args, **kwargs)
        convert_frame.input_codes.add(frame.f_code)  # whose marks a reset takes off
        strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
        return ConvertFrameReturn(frame_exec_strategy=strategy)

    patches.put(convert_frame.CatchErrorsWrapper, "__call__", asking)


def hook_comprehensions(patches: Patches, is_ours: IsOurs) -> None:
    """Run a frame in eager if Dynamo would break the graph in a comprehension under a handler.

    From Python 3.12 on a comprehension is part of the function it stands in. For a graph break in
    one, Dynamo makes a function of it and calls that between two graphs, outside the ``try`` or
    with-block around it. Then ``except`` does not see its errors, and ``torch.no_grad()`` does not
    hold in it. In frames of ours such a comprehension is left whole, and the frame runs in eager,
    as for a loop.
    """
    home: Any = symbolic_convert
    name = "maybe_setup_comprehension_speculation"
    if not hasattr(home, name):  # before torch 2.13 it is a method
        home, name = symbolic_convert.InstructionTranslatorBase, f"_{name}"

    def may_be_cut(theirs: Theirs, translator: Any, instruction: Any) -> bool:
        # The comprehension's own handler, which puts the locals back that it hides, begins with the
        # instruction traced now.
        in_front = translator.instructions[max(translator.instruction_pointer - 2, 0)]
        handled = instruction.argval == 0 and in_front.exn_tab_entry is not None
        if handled and is_ours(translator.output):
            return False
        return bool(theirs(translator, instruction))

    patches.put(home, name, may_be_cut)
