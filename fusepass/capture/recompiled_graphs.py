"""Put the code around a graph again when torch compiles the graph for another size.

``mark_dynamic(x, 0, specialize_on=[…])`` has one graph compiled for any size, and again for a size
of the list when such an input first comes. The trace is over then: nothing can be given back, and
what capture put around the graph goes around each of its compiled forms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.capture.frame_state import Frame
from fusepass.capture.refusal import fault
from fusepass.errors import BranchRuleError
from fusepass.report import log

Compiled = Callable[..., Any]


@dataclass(frozen=True)
class Traced:
    """A complete graph, settled and compiled for inputs of any size.

    Attributes:
        gm: the graph.
        around: puts around a compiled form what the graph cannot hold.
        compiled: what runs it, for any size.
        record: what was decided about it.
    """

    gm: fx.GraphModule
    around: Callable[[Compiled], Compiled]
    compiled: Compiled
    record: log.GraphRecord


def compiled_again(frame: Frame, traced: Traced, compile_graph: Callable[[], Compiled]) -> Compiled:
    """The same graph, compiled for the sizes that torch knows now."""
    try:
        with log.compiling(frame, again=traced.record):
            return traced.around(compile_graph())
    except BranchRuleError as error:  # our error costs speed, never the program
        fault(error, traced.record.file, traced.record.line)
        return traced.compiled
