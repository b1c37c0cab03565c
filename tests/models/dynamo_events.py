"""Count what Dynamo does, in the same way for every backend.

Graph breaks, frames that it gives up and runs in eager mode, frames that it compiles.
"""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
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
        breaks: each graph break once: the lines called, outermost first, and what Dynamo met. The
            same line breaks once for each function around it that Dynamo compiles by itself.
        left: functions that run in eager mode because their graph breaks and cannot go on.
        compiles: frames compiled, for the first time or again.
        entered: graphs entered so far.
    """

    breaks: dict[tuple[Place, ...], str] = field(default_factory=dict)
    left: set[tuple[str, int, str]] = field(default_factory=set)
    compiles: int = 0
    entered: int = 0
    met: dict[tuple[Place, ...], str] = field(default_factory=dict)

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
            stack = getattr(exc, "real_stack", None) or torch._guards.TracingContext.extract_stack()
            places = tuple((one.filename, one.lineno or 0) for one in stack)
            if not places:
                places = ((self.f_code.co_filename, self.f_code.co_firstlineno),)
            events.met.pop(places, None)
            events.met[places] = str(exc or reason)  # the last of them is last
        return log(self, code_options, reason=reason, exc=exc, **kw)

    def converted(self: Any, frame: Any, *args: Any, **kw: Any) -> Any:
        events.met, outer = {}, events.met
        fine = counters["frames"]["ok"]
        result = convert(self, frame, *args, **kw)
        met, events.met = events.met, outer
        code = frame.f_code
        if result.guarded_code is not None:
            events.compiles += 1
            goes_on = _resumed(result.guarded_code.code, frame.f_globals)
            last = {one[0]: (one, text) for one, text in met.items() if _is_final(one[0], goes_on)}
            met = dict(last.values())  # an earlier attempt may break elsewhere in the same call
        elif met or counters["frames"]["ok"] == fine:
            events.left.add((code.co_filename, code.co_firstlineno, code.co_name))
            met = dict([*met.items()][-1:])  # the others are of earlier attempts
        events.breaks = {**met, **events.breaks}
        return result

    with (
        mock.patch.object(InstructionTranslatorBase, "log_graph_break", logged),
        mock.patch.object(convert_frame.ConvertFrame, "__call__", converted),
    ):
        yield


def _resumed(code: CodeType, names: dict[str, Any]) -> set[int]:
    """The lines behind which the code that Dynamo made goes on in a function of its own."""
    found = (names.get(name) for name in code.co_names if name.startswith("__resume_at"))
    made = (one.__code__.co_name.rpartition("_at_")[2] for one in found if one is not None)
    return {int(one) for one in made if one.isdigit()}


def _is_final(place: Place, goes_on: set[int]) -> bool:
    """Whether the graph breaks at a line of the frame in the last of the attempts to trace it."""
    return place[1] in goes_on or linecache.getline(*place).lstrip().startswith("return")
