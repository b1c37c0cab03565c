"""Bound how many branches are traced one inside another.

Each takes some ten calls of Python functions, so hundreds need more than Python allows at first,
and thousands would need more than the thread has. ``if … elif …`` with many tests is such a nest.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from fusepass.capture.bytecode.control_flow import EXIT, Region, region_of
from fusepass.capture.frame_state import Frame
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import restart_leaving
from fusepass.report import log
from fusepass.report.decision import Reason

MOST_INSIDE = 200
_CALLS = 50  # of Python functions, inside one another, to trace an arm inside an arm
_CALLS_OF_VALUE = 8  # the same, to follow a value to the branch before
_DEEP = "deep", None  # among what is left to Dynamo
_TEXT = f"more than {MOST_INSIDE} branches stand one inside another"


@contextlib.contextmanager
def room_for_arm(translator: Any, frame: Frame) -> Iterator[None]:
    """Let Python's stack grow by what tracing the arm takes that was entered last.

    If there are too many, the frame starts again. From then on they are counted before they are
    traced: else each of them would be found out to be too deep by itself.

    Raises:
        Refusal: there still are too many, in functions that are traced as part of the caller.
    """
    if len(frame.arms) > MOST_INSIDE:
        if _DEEP in frame.attempts.kept:
            raise Refusal(Reason.UNTRACEABLE, _TEXT)
        log.log_of(frame.compiler).settled[_file_of(translator)] = _TEXT
        restart_leaving(frame, {_DEEP: (Reason.UNTRACEABLE, _TEXT)})
    with _more_calls(_CALLS):
        yield


@contextlib.contextmanager
def room_for_values(frame: Frame) -> Iterator[None]:
    """The same for what follows values through all branches of a frame, one after the other."""
    with _more_calls(_CALLS_OF_VALUE * len(frame.sites)):
        yield


@contextlib.contextmanager
def _more_calls(count: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + count)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def check_nesting(translator: Any, frame: Frame) -> None:
    """Refuse a branch of a file with branches too deep if it has too many inside it.

    Raises:
        Refusal: it has.
    """
    if frame.arms or _file_of(translator) not in log.log_of(frame.compiler).settled:
        return
    at = translator.instruction_pointer - 1
    region = region_of(translator.f_code, translator.instructions)
    around = _jumps_around(translator.instructions, region)
    join = region.join_of(at)
    inside = around[at : len(around) if join == EXIT else max(join, at + 1)]
    if max(inside) - around[at] >= MOST_INSIDE:
        raise Refusal(Reason.UNTRACEABLE, _TEXT)


def _file_of(translator: Any) -> Any:
    return "deep", translator.f_code.co_filename


def _jumps_around(instructions: Sequence[Any], region: Region) -> list[int]:
    """For each instruction, how many conditional jumps it stands between and the joins of."""
    change = [0] * (len(instructions) + 1)
    for at, one in enumerate(instructions):
        if "JUMP" in one.opname and "_IF_" in one.opname:
            join = region.join_of(at)
            end = len(instructions) if join == EXIT else join
            if end > at + 1:
                change[at + 1] += 1
                change[end] -= 1
    return list(accumulate(change))[:-1]
