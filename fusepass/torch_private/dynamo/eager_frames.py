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

from fusepass.torch_private.patches import Patches, Theirs


@dataclass(frozen=True)
class Written:
    """The instructions of a code object, as Dynamo reads it, and where each of them is."""

    instructions: list[Any]
    indexof: dict[Any, int]


@functools.lru_cache(maxsize=256)
def written(code: CodeType) -> Written:
    """A code object as Dynamo reads it."""
    from torch._dynamo.bytecode_transformation import cleaned_instructions

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
        """Where each instruction is."""
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

    Args:
        frame: the frame.
        with_locals: whether its locals are looked up, for which Python copies them all.
    """
    code = frame.f_code
    now = _place(code, frame.f_lasti)
    if now is None:
        return None
    read = written(code)
    values = frame.f_locals if with_locals else {}
    return WrittenFrame(code, read, read.instructions[now], frame.f_globals, values)


@functools.cache
def _ends() -> tuple[frozenset[str], str, Any]:
    """Files that end a walk outwards, the one in which compiled code is called, Dynamo's codes."""
    from torch._dynamo import convert_frame, eval_frame, guards

    files = (convert_frame.__file__, eval_frame.__file__, guards.__file__)
    return frozenset(files), eval_frame.__file__, convert_frame.output_codes


@functools.lru_cache(maxsize=4096)
def _is_in_a_try(code: CodeType, last: int) -> bool:
    now = _place(code, last)
    held = None if now is None else written(code).instructions[now]
    return getattr(held, "exn_tab_entry", None) is not None


_SAY_WHY = {"check_verbose", "get_guard_fail_reason_helper"}  # functions of Dynamo


def frames_with_handlers() -> list[FrameType]:
    """The program's frames around a compiled one that is about to run, if they stand in a ``try``.

    Called by a guard, before each call of the compiled frame, and once more by Dynamo where the
    frame is compiled again, to find the guard that failed. Empty where that guard is tried while
    the frame is compiled.
    """
    files, calling, made = _ends()
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename in files:
            if code.co_name in _SAY_WHY:
                frame = _outside(frame)
                continue
            return found if code.co_filename == calling else []
        if code.co_exceptiontable and _is_in_a_try(code, frame.f_lasti) and code not in made:
            found.append(frame)
        frame = frame.f_back
    return []


def _callers() -> list[FrameType]:
    from torch._dynamo import convert_frame, eval_frame

    calling, found = eval_frame.__file__, []
    frame = _outside(sys._getframe(1))
    while frame is not None and frame.f_code.co_filename != calling:
        if frame.f_code not in convert_frame.output_codes and frame.f_code.co_filename != __file__:
            found.append(frame)
        frame = frame.f_back
    return found if frame is not None else []


def _outside(frame: FrameType | None) -> FrameType | None:
    """The frame that Python was in when it came to Dynamo with one to be compiled."""
    from torch._dynamo import convert_frame

    while frame is not None and not _enters(frame, convert_frame.__file__):
        frame = frame.f_back
    return None if frame is None else frame.f_back


def _enters(frame: FrameType, compiling: str) -> bool:
    """Whether a frame is where Python came to Dynamo with a frame to be compiled."""
    if frame.f_code.co_filename != compiling or frame.f_code.co_name != "__call__":
        return False
    return frame.f_back is None or frame.f_back.f_code.co_filename != compiling


def hook_frames(patches: Patches, runs_as_it_is: Callable[[Any, Any], bool]) -> None:
    """Have some frames, and all that they call, run in eager for good.

    Args:
        patches: take the hook out again.
        runs_as_it_is: called with Dynamo's callback and a frame that it may compile.
    """
    from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
    from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
    from torch._dynamo import convert_frame
    from torch._dynamo.types import ConvertFrameReturn

    def asking(theirs: Theirs, self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        if not runs_as_it_is(self, frame):
            return theirs(self, frame, *args, **kwargs)
        convert_frame.input_codes.add(frame.f_code)  # whose marks a reset takes off
        strategy = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
        return ConvertFrameReturn(frame_exec_strategy=strategy)

    patches.put(convert_frame.CatchErrorsWrapper, "__call__", asking)
