"""Print, log and warn as if the program's own call did it."""

from __future__ import annotations

import logging
import sys
from typing import Any
from warnings import warn_explicit


def emit_print(function: Any, *values: Any, stream: str | None = None, **options: Any) -> None:
    """``print(*values, file=sys.<stream>, **options)``, the stream looked up now.

    ``function`` is Python's ``print``: there may be another one under that name now.
    """
    if stream is not None:
        options["file"] = getattr(sys, stream)
    function(*values, **options)


def emit_pprint(function: Any, value: Any, **options: Any) -> None:
    """``pprint.pprint`` or ``pprint.pp``, which is the function."""
    function(value, **options)


def emit_log(
    logger: logging.Logger | None,
    level: int,
    place: tuple[str, int, str],
    message: Any,
    *values: Any,
) -> None:
    """A log record as from ``place`` (file, line, function); ``None`` is the root logger.

    Like the functions of ``logging``, those of the root logger configure it if nobody has.
    """
    if logger is None:
        logger = logging.root
        if not logger.handlers:
            logging.basicConfig()
    if logger.isEnabledFor(level):
        file, line, function = place
        record = logger.makeRecord(
            logger.name, level, file, line, message, values, None, function, None, None
        )
        logger.handle(record)


def emit_warning(
    message: Any, category: Any, place: tuple[str, int], module: dict[str, Any]
) -> None:
    """What ``warnings.warn`` does for a call at ``place`` (file, line), of code with these globals.

    ``category`` is None for the class of the message, or UserWarning.
    """
    if isinstance(message, Warning):
        category = type(message)
    warn_explicit(
        message,
        category or UserWarning,
        *place,
        module.get("__name__") or "<string>",
        module.setdefault("__warningregistry__", {}),
    )
