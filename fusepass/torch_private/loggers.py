"""Loggers: which one Dynamo has, whether it is enabled, and torch's own. Run on 2.11 to 2.15."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any


def known_logger(translator: Any, logger: logging.Logger) -> Any:
    """The tracked value of a logger that the program got while it was traced."""
    from torch._dynamo.source import GlobalSource
    from torch._dynamo.variables.misc import LoggingLoggerVariable

    name = translator.output.install_global_by_id("fusepass_logger", logger)
    return LoggingLoggerVariable(logger, source=GlobalSource(name))


def pin_logger(source: Any) -> bool:
    """Guard on the logger from a source being the one traced; says whether that could be done."""
    from torch._dynamo.guards import GuardBuilder, install_guard

    if source is None:
        return False
    install_guard(source.make_guard(GuardBuilder.ID_MATCH))
    return True


def pin_level(logger: logging.Logger, source: Any) -> bool:
    """Guard on all that decides for which levels a logger is enabled; says whether it could."""
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource

    if not pin_logger(source):
        return False
    asked = [AttrSource(source, "disabled"), AttrSource(AttrSource(source, "manager"), "disable")]
    current: logging.Logger | None = logger
    while current is not None:
        asked.append(AttrSource(source, "level"))
        if current.level:
            break
        current, source = current.parent, AttrSource(source, "parent")
    install_guard(*(each.make_guard(GuardBuilder.EQUALS_MATCH) for each in asked))
    return True


@contextlib.contextmanager
def failures_unlogged() -> Iterator[None]:
    """Leave out what torch says about code that is only tried: no error of the program.

    It logs a traceback where an operation fails on fake tensors, and warns of functions that Dynamo
    cannot trace. Other threads' failures are logged.
    """
    from torch._dynamo import utils

    here, warn_once = threading.get_ident(), utils.warn_once

    def is_shown(record: logging.LogRecord) -> bool:
        return record.thread != here or record.levelno < logging.ERROR

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(is_shown)
    utils.warn_once = _untold
    try:
        yield
    finally:
        utils.warn_once = warn_once
        logger.removeFilter(is_shown)


def _untold(*_: Any, **__: Any) -> None:
    """In the place of what warns."""
