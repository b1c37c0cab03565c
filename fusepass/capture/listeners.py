"""Who hears a line when it is written: code of the program could look around then.

Dynamo makes changes of attributes, lists and dicts after the graph, and so after the lines. Streams
and handlers of the standard library do not look at them.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

_STANDARD = ("logging", "logging.handlers")
# Packages whose text streams only pass on what is written.
_STREAMS = frozenset("_io io codecs doctest idlelib IPython ipykernel _pytest fusepass".split())


def of_stream(name: str) -> str | None:
    """What is not a plain text stream under ``sys.<name>``, or None."""
    stream = getattr(sys, name, None)
    if _is_plain(stream):
        return None
    return f"sys.{name}, of class {type(stream).__name__},"


def _is_plain(stream: Any) -> bool:
    package = type(stream).__module__.partition(".")[0]
    return stream is None or (isinstance(stream, io.TextIOBase) and package in _STREAMS)


def of_logger(logger: logging.Logger) -> str | None:
    """What hears a record of a logger and is not of the standard library, or None."""
    for part in _heard_by(logger):
        plain = _is_plain(getattr(part, "stream", None))
        if type(part).__module__ not in _STANDARD or not plain:
            return f"a {type(part).__name__} of logging"
    return None


def _heard_by(logger: logging.Logger) -> Iterator[Any]:
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


def of_warnings() -> str | None:
    """What shows warnings in place of the standard library, or None."""
    original = getattr(warnings, "_showwarning_orig", None)
    if warnings.showwarning is original:
        return of_stream("stderr")
    return "warnings.showwarning"


def would_raise(category: type[Warning], text: Any, module: str, line: int) -> bool:
    """Whether the filters in force turn a warning into an exception, or might.

    Args:
        category: of the warning.
        text: its text; None or another value where that is not known.
        module: name of the module it is about.
        line: the line it is about.
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
