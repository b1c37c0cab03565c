"""Warnings that the filters in force show once are shown once.

Python forgets what it has shown whenever filters change, and torch changes them in each compile:
the default filter would show a warning each time.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

_said: set[tuple[Any, ...]] = set()


def warn(message: Warning, stacklevel: int) -> None:
    """Warn as ``warnings.warn`` does; once where the filters in force show a warning once."""
    frame = sys._getframe(stacklevel)
    file, line = frame.f_code.co_filename, frame.f_lineno
    module = str(frame.f_globals.get("__name__", "<unknown>"))
    places = {"default": (file, line), "module": (module,), "once": ()}
    place = places.get(_action(message, module, line))
    if place is not None:
        key = (type(message), str(message), *place)
        if key in _said:
            return
        _said.add(key)
    warnings.warn(message, stacklevel=stacklevel + 1)


def forget() -> None:
    """Show again what was shown."""
    _said.clear()


def _action(warning: Warning, module: str, line: int) -> str:
    """What the first filter that matches says to do."""
    for action, text, category, where, number in warnings.filters:
        if (
            isinstance(warning, category)
            and _matches(text, str(warning))
            and _matches(where, module)
            and number in (0, line)
        ):
            return str(action)
    return "default"


def _matches(wanted: Any, text: str) -> bool:
    """Whether a filter's pattern, which Python itself gives as plain text, is that of a text."""
    if wanted is None or isinstance(wanted, str):
        return wanted in (None, text)
    return wanted.match(text) is not None
