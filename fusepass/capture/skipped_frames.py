"""Warn where Dynamo gives a frame up, and what it computes has no compiled graph at all.

Dynamo cannot go on behind a graph break in a loop, and in most ``try`` and with-blocks. The frame
then runs in eager mode, which is slower than any other outcome, and nothing else says so.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from types import CodeType
from typing import Any

from torch import fx

from fusepass.capture import graph_breaks
from fusepass.capture.bytecode.instructions import handler_of
from fusepass.capture.frame_state import Frame
from fusepass.errors import FrameNotCompiled
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report import log, warn_once
from fusepass.report.decision import Reason
from fusepass.report.user_code import is_torchs_file
from fusepass.torch_private.dynamo.errors.error_hooks import suspends

_LOOP = "graph break in loop"
_FRAMES = re.compile(r'File "(.+?)", line (\d+), in (\S+)')


def warn_of_skipped(translator: Any, frame: Frame, error: BaseException) -> None:
    """Warn, once for each function, of a frame that is about to be given up.

    Not where the error reaches the user, where the frame has computed nothing, or where options
    ask for the graph break.
    """
    code = translator.f_code
    if translator.one_graph or translator.error_on_graph_break or is_torchs_file(code.co_filename):
        return
    if not any(_runs_in(code, node) for node in translator.output.graph.nodes):
        return
    cause = graph_breaks.cause_of(translator, frame, str(error), error)
    function = (code.co_filename, code.co_firstlineno, graph_breaks.name_of(translator))
    warned = log.log_of(frame.compiler).warned
    if cause.code is Reason.FORCED or function in warned:
        return
    warned.add(function)
    file, line, name = function
    at = f"{Path(cause.place[0]).name}:{cause.place[1]}"
    message = FrameNotCompiled(f"{name} ({file}:{line})", at, cause.text, _block(translator, error))
    with contextlib.suppress(FrameNotCompiled):  # filters may make errors of warnings
        warn_once.warn(message, stacklevel=2)


def _runs_in(code: CodeType, node: fx.Node) -> bool:
    """Whether eager runs an operation on tensors in this code, not in a function that it calls.

    Dynamo compiles such a function by itself, unless it is torch's.
    """
    if not node.op.startswith("call") or tensor_value(node) is None:
        return False
    called = _FRAMES.findall(node.stack_trace or "")
    own = [one for one in called if not is_torchs_file(one[0])]
    if not own:
        return True
    file, line, _ = own[-1]
    lines = [at for _, _, at in code.co_lines() if at is not None]
    return file == code.co_filename and min(lines) <= int(line) <= max(lines)


def _block(translator: Any, error: BaseException) -> str | None:
    """What the graph breaks in that Dynamo cannot go on behind."""
    if suspends(translator.f_code):
        return "generator"
    if getattr(error, "gb_type", None) == _LOOP:
        return "loop"
    entry = handler_of(translator.current_instruction)
    if entry is None:
        return None
    start = translator.indexof[entry.target]
    names = [one.opname for one in translator.instructions[start : start + 4]]
    return "with-block" if "WITH_EXCEPT_START" in names else "try"
