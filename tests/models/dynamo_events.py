"""Count what Dynamo does, in the same way for every backend.

Graph breaks, frames that it gives up and runs in eager mode, frames that it compiles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._dynamo import convert_frame
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.utils import counters

Place = tuple[str, int]


@dataclass
class Events:
    """What happened in the calls of one compiled model.

    Attributes:
        breaks: each graph break once: the lines called, outermost first, and what Dynamo met.
        left: functions that run in eager mode because their graph breaks and cannot go on.
        compiles: frames compiled, for the first time or again.
        entered: graphs entered so far.
    """

    breaks: dict[tuple[Place, ...], str] = field(default_factory=dict)
    left: set[tuple[str, int, str]] = field(default_factory=set)
    compiles: int = 0
    entered: int = 0
    met: int = 0

    def plain(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        """A backend that runs the graph op by op, and counts how often it is entered."""

        def entered(*args: Any) -> Any:
            self.entered += 1
            return gm.forward(*args)

        return entered


@contextlib.contextmanager
def counted(events: Events) -> Iterator[None]:
    """Put what Dynamo does on record."""
    log, convert = InstructionTranslatorBase.log_graph_break, convert_frame.ConvertFrame.__call__

    def logged(self: Any, code_options: Any, reason: str = "", exc: Any = None, **kw: Any) -> Any:
        if not getattr(exc, "logged", False):
            events.met += 1
            stack = getattr(exc, "real_stack", None) or torch._guards.TracingContext.extract_stack()
            places = tuple((one.filename, one.lineno or 0) for one in stack)
            if not places:
                places = ((self.f_code.co_filename, self.f_code.co_firstlineno),)
            events.breaks.setdefault(places, str(exc or reason))
        return log(self, code_options, reason=reason, exc=exc, **kw)

    def converted(self: Any, frame: Any, *args: Any, **kw: Any) -> Any:
        met, fine = events.met, counters["frames"]["ok"]
        result = convert(self, frame, *args, **kw)
        if result.guarded_code is not None:
            events.compiles += 1
        elif events.met > met or counters["frames"]["ok"] == fine:
            code = frame.f_code
            events.left.add((code.co_filename, code.co_firstlineno, code.co_name))
        return result

    with (
        mock.patch.object(InstructionTranslatorBase, "log_graph_break", logged),
        mock.patch.object(convert_frame.ConvertFrame, "__call__", converted),
    ):
        yield
