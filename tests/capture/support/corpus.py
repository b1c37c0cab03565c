"""All programs, family by family."""

from __future__ import annotations

import importlib
import pkgutil

from .. import programs
from .program import Program


def load() -> tuple[Program, ...]:
    """Every program of every family, in order of file and line."""
    found: list[Program] = []
    for info in sorted(pkgutil.iter_modules(programs.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{programs.__name__}.{info.name}")
        found.extend(module.FAMILY)
    return tuple(found)


CORPUS = load()
