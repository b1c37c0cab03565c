"""Where in the user's program something happens: the innermost and the outermost user's line.

Frames of torch, of fusepass, of the standard library and of generated code are nobody's program;
those of other libraries (transformers, torchvision, …) are.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parents[2]) + os.sep
_STANDARD = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
_TEXT_MAKERS = (
    f"{_STANDARD}logging{os.sep}",
    f"{_STANDARD}warnings.py",
    f"{_TORCH}_tensor_str.py",
)
Span = tuple[int, int, int, int]  # first and last line, first and last column


@dataclass(frozen=True)
class ProgramPlace:
    """A place in the user's program.

    Attributes:
        file, line: the innermost user's line, ``("", 0)`` when there is none.
        code, offset: the code object, and where in it.
        caller_file, caller_line: the outermost user's line below the call that is looked at.
        graph: the record of the compiled graph that was running, or None.
        emitted: name of the file of fusepass's whose code around a graph was running, ``""`` for
            none.
        text: whether text is being made: ``logging``, ``warnings`` or ``repr`` of a tensor.
        library: the file of torch that the user's line called into, ``""`` when there is none.
    """

    file: str = ""
    line: int = 0
    code: CodeType | None = None
    offset: int = 0
    caller_file: str = ""
    caller_line: int = 0
    graph: Any = None
    emitted: str = ""
    text: bool = False
    library: str = ""

    @property
    def function(self) -> str:
        """Name of the function."""
        return "" if self.code is None else self.code.co_name

    @property
    def span(self) -> Span | None:
        """The expression evaluated there, None when unknown."""
        return None if self.code is None else _span(self.code, self.offset)


def here(bottom: CodeType, thread: int, entered: tuple[CodeType, ...] = ()) -> ProgramPlace:
    """The place where this is called.

    Args:
        bottom: code of the function that made the call looked at; its callers do not count.
        thread: of that function; autograd has threads of its own, which know no user's frame.
        entered: codes of functions that run a compiled graph and have its record as ``record``.
    """
    found = _walk(sys._getframe(1), bottom, entered)
    if not found.file:
        frame = sys._current_frames().get(thread)
        found = _walk(frame, bottom, entered) if frame is not None else found
    return found


def _walk(frame: FrameType | None, bottom: CodeType, entered: tuple[CodeType, ...]) -> ProgramPlace:
    inner: FrameType | None = None
    outer: FrameType | None = None
    graph, emitted, text, library = None, "", False, ""
    while frame is not None and frame.f_code is not bottom:
        code = frame.f_code
        home = _home(code.co_filename)
        if home == "user":
            inner, outer = inner or frame, frame
        elif inner is None:
            if any(code is one for one in entered):
                graph = graph or frame.f_locals.get("record")
            text = text or code.co_filename.startswith(_TEXT_MAKERS)
            if home == "ours" and f"{os.sep}capture{os.sep}" in code.co_filename:
                emitted = emitted or Path(code.co_filename).name
            library = code.co_filename if home == "torch" else library
        frame = frame.f_back
    if inner is None or outer is None:
        return ProgramPlace(graph=graph, emitted=emitted, text=text, library=library)
    return ProgramPlace(
        inner.f_code.co_filename,
        inner.f_lineno or 0,
        inner.f_code,
        inner.f_lasti,
        outer.f_code.co_filename,
        outer.f_lineno or 0,
        graph,
        emitted,
        text,
        library,
    )


@functools.lru_cache(maxsize=4096)
def _home(file: str) -> str:
    """Whose a source file is: ``user``, ``torch``, ``ours`` or ``generated``."""
    if file.startswith("<") and not file.startswith(("<stdin>", "<ipython", "<input", "<string>")):
        return "generated"
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if "torchinductor_" in file or (folder and file.startswith(folder)):
        return "generated"
    if file.startswith(_TORCH):
        return "torch"
    if file.startswith(_OURS):
        return "ours"
    real = os.path.realpath(file)
    if real.startswith(_STANDARD) and "site-packages" not in real and "dist-packages" not in real:
        return "generated"
    return "user"


def _span(code: CodeType, offset: int) -> Span | None:
    # Not cached: code that Dynamo makes cannot be hashed.
    place = next(itertools.islice(code.co_positions(), offset // 2, None), (None,) * 4)
    line, end, column, end_column = place
    if line is None or end is None or column is None or end_column is None:
        return None
    return line, end, column, end_column
