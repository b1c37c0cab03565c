"""Guard a frame against changed loggers, warning filters and streams.

They decide whether a print or a log record may wait until after the graph. A filter may turn a
warning into an exception; ``sys.stdout`` or a handler may be code of the program, and such code can
see that Dynamo applies changes of attributes, lists and dicts only after the graph. Streams and
handlers of the standard library do not look. The guard asks before each call; where an answer
changed, the frame is traced anew.
"""

from __future__ import annotations

import functools
import io
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from fusepass.torch_private.dynamo.guards import guard_on

Question = functools.partial[Any]


class ListenerCheck:
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
        self._questions.setdefault((question.func, question.args), question)
        for asked in question.args:  # the loggers whose handlers it looks at
            while isinstance(asked, logging.Logger):
                self._loggers += [] if asked in self._loggers else [asked]
                asked = asked.parent  # noqa: PLW2901
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


def add_listener_checks(translator: Any, frame: Any, questions: Iterable[Question]) -> None:
    """Have a frame ask questions before each call, except those whose answer is yes already."""
    for question in questions:
        if question():
            continue
        if frame.hearing is None:
            frame.hearing = ListenerCheck()
            guard_on(translator, "fusepass_hearing", frame.hearing)
        frame.hearing.add(question)


_STANDARD = ("logging", "logging.handlers")
# Packages whose text streams only pass on what is written.
_STREAMS = frozenset("_io io codecs doctest idlelib IPython ipykernel _pytest fusepass".split())


def stream_listener(name: str) -> str | None:
    """What is not a plain text stream under ``sys.<name>``, or None."""
    stream = getattr(sys, name, None)
    if _is_plain(stream):
        return None
    return f"sys.{name}, of class {type(stream).__name__},"


def _is_plain(stream: Any) -> bool:
    package = type(stream).__module__.partition(".")[0]
    return stream is None or (isinstance(stream, io.TextIOBase) and package in _STREAMS)


def logger_listener(logger: logging.Logger) -> str | None:
    """What hears a record of a logger and is not of the standard library, or None."""
    for part in _listeners_of(logger):
        plain = _is_plain(getattr(part, "stream", None))
        if type(part).__module__ not in _STANDARD or not plain:
            return f"a {type(part).__name__} of logging"
    return None


def _listeners_of(logger: logging.Logger) -> Iterator[Any]:
    current: logging.Logger | None = logger
    yield from logger.filters
    while current is not None:
        for handler in current.handlers:
            yield handler
            yield from handler.filters
            if handler.formatter is not None:
                yield handler.formatter
        current = current.parent if current.propagate else None
    if logging.getLogRecordFactory() is not logging.LogRecord:
        yield logging.getLogRecordFactory()


def warnings_listener() -> str | None:
    """What shows warnings in place of the standard library, or None."""
    original = getattr(warnings, "_showwarning_orig", None)
    if warnings.showwarning is original:
        return stream_listener("stderr")
    return "warnings.showwarning"


def would_raise(category: type[Warning], text: Any, module: str, line: int) -> bool:
    """Whether the filters in force turn a warning about a line into an exception, or might.

    ``text`` is None or another value where the text is not known.
    """
    for action, message, kind, where, number in warnings.filters:
        matches = issubclass(category, kind) and number in (0, line)
        if not matches or (where is not None and not where.match(module)):
            continue
        if message is None:
            return action == "error"
        if not isinstance(text, str):
            if action == "error":
                return True
        elif message.match(text):
            return action == "error"
    return str(warnings.defaultaction) == "error"  # type: ignore[attr-defined]
