"""Whether the lines of a frame would still be heard as they were when it was traced.

That decides whether they may wait: a filter may have turned a warning into an exception since, and
``sys.stdout`` or a handler may have become code of the program, which looks around. A guard of the
frame asks before each call; where an answer is another one, the frame is traced anew.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fusepass.torch_private.guards import guard_on

Question = Callable[[], Any]


class Hearing:
    """Questions about who hears the lines of one frame, all of them answered by no so far.

    Asking takes some microseconds, too long for every call. What the answers depend on, as a rule,
    is compared first: classes of streams, filters of warnings, handlers of loggers.
    """

    text = "what it prints, logs and warns of is heard as when it was compiled"

    def __init__(self) -> None:
        self._questions: dict[Any, Question] = {}
        self._loggers: list[logging.Logger] = []
        self._look()

    def add(self, question: Question) -> None:
        """Remember a question that was answered by no."""
        self._questions.setdefault(_key(question), question)
        self._loggers += [one for one in _loggers(question) if one not in self._loggers]
        self._look()

    def holds(self) -> bool:
        """Whether all answers are still no."""
        if (
            type(sys.stdout) is self._out
            and type(sys.stderr) is self._err
            and warnings.filters == self._filters
            and warnings.showwarning is self._shows
            and (not self._loggers or [one.handlers for one in self._loggers] == self._handlers)
        ):
            return True
        if any(question() for question in self._questions.values()):
            return False
        self._look()
        return True

    def _look(self) -> None:
        self._out, self._err = type(sys.stdout), type(sys.stderr)
        self._filters, self._shows = list(warnings.filters), warnings.showwarning
        self._handlers = [list(one.handlers) for one in self._loggers]


def _key(question: Question) -> Any:
    if isinstance(question, functools.partial):
        return question.func, question.args
    return question


def _loggers(question: Question) -> Iterator[logging.Logger]:
    """The loggers whose handlers a question looks at."""
    for asked in question.args if isinstance(question, functools.partial) else ():
        current = asked
        while isinstance(current, logging.Logger):
            yield current
            current = current.parent


def ask(translator: Any, frame: Any, questions: Iterable[Question]) -> None:
    """Have a frame ask questions before each call.

    Args:
        translator: Dynamo's.
        frame: of capture, for the frame being traced.
        questions: each gives something true for yes. Where the answer is yes already, the frame is
            good for either.
    """
    for question in questions:
        if question():
            continue
        if frame.hearing is None:
            frame.hearing = Hearing()
            guard_on(translator, "fusepass_hearing", frame.hearing)
        frame.hearing.add(question)
