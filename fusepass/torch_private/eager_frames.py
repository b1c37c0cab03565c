"""Dynamo: frames in eager: those around the one it compiles, and those left to run as they are.

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


@dataclass(frozen=True)
class WrittenFrame:
    """Code of the program as Dynamo reads it, with a place in it.

    Attributes:
        f_code: the code object.
        instructions: Dynamo's.
        current_instruction: the place.
        f_globals, f_locals: the names of the frame; no locals where it does not run.
    """

    f_code: CodeType
    instructions: list[Any]
    current_instruction: Any
    f_globals: dict[str, Any]
    f_locals: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def indexof(self) -> dict[Any, int]:
        """Where each instruction is."""
        return {one: index for index, one in enumerate(self.instructions)}


@functools.lru_cache(maxsize=64)
def instructions_of(code: CodeType) -> list[Any]:
    """The instructions of a code object, as Dynamo reads it."""
    from torch._dynamo.bytecode_transformation import cleaned_instructions

    return cleaned_instructions(code)


def eager_frames() -> list[WrittenFrame]:
    """The program's frames around the one being compiled, up to where torch.compile was called.

    Without those whose code Dynamo made, which hold no handlers of the program.
    """
    found = []
    for frame in _callers():
        instructions = instructions_of(frame.f_code)
        places = [i for i in instructions if i.offset is not None and i.offset <= frame.f_lasti]
        if places:
            now = max(places, key=lambda one: one.offset)
            written = WrittenFrame(frame.f_code, instructions, now, frame.f_globals, frame.f_locals)
            found.append(written)
    return found


def _callers() -> list[FrameType]:
    from torch._dynamo import convert_frame, eval_frame

    compiling, calling = convert_frame.__file__, eval_frame.__file__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _enters(frame, compiling):
        frame = frame.f_back
    found = []
    frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_code.co_filename != calling:
        if frame.f_code not in convert_frame.output_codes and frame.f_code.co_filename != __file__:
            found.append(frame)
        frame = frame.f_back
    return found if frame is not None else []


def _enters(frame: FrameType, compiling: str) -> bool:
    """Whether a frame is where Python came to Dynamo with a frame to be compiled."""
    if frame.f_code.co_filename != compiling or frame.f_code.co_name != "__call__":
        return False
    return frame.f_back is None or frame.f_back.f_code.co_filename != compiling


def hook_frames(runs_as_it_is: Callable[[Any, Any], bool]) -> Callable[[], None]:
    """Have some frames, and all that they call, run in eager for good.

    Args:
        runs_as_it_is: called with Dynamo's callback and a frame that it may compile.

    Returns:
        The function that takes the hook out again.
    """
    from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
    from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
    from torch._dynamo import convert_frame
    from torch._dynamo.types import ConvertFrameReturn

    wrapper = convert_frame.CatchErrorsWrapper
    call = wrapper.__call__

    @functools.wraps(call)
    def asking(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        if not runs_as_it_is(self, frame):
            return call(self, frame, *args, **kwargs)
        convert_frame.input_codes.add(frame.f_code)  # whose marks a reset takes off
        strategy = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
        return ConvertFrameReturn(frame_exec_strategy=strategy)

    wrapper.__call__ = asking  # type: ignore[method-assign]
    return lambda: setattr(wrapper, "__call__", call)
