"""Suites: named lists of programs that a checkout brings in ``tests/perf/suites``.

They are no part of the wheel: who installs fusepass times targets.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fusepass.bench.program import Program
from fusepass.errors import BenchError

_CATALOGUE = "tests.perf.suites.catalogue"


def _catalogue() -> Any:
    """The module that lists the suites.

    Raises:
        BenchError: the working directory is no checkout.
    """
    here = str(Path.cwd())
    if here not in sys.path:  # python -P, and processes that were given another path
        sys.path.append(here)
    try:
        return importlib.import_module(_CATALOGUE)
    except ModuleNotFoundError as error:
        if not _CATALOGUE.startswith(error.name or " "):
            raise
        raise BenchError(
            "fusepass bench: suites are part of the repository. Run the command in a checkout, or "
            "give a target: module:function or path/to/file.py:function."
        ) from error


def suite_programs(suite: str, device: str, *, compile_only: bool = False) -> tuple[Program, ...]:
    """Every program of a suite, sized for ``device`` ("cuda" or "cpu").

    Args:
        suite: its name.
        device: decides sizes and dtype.
        compile_only: the programs for the compile-time table.

    Raises:
        BenchError: no such suite, or no checkout.
    """
    listed = _catalogue()
    suites: Mapping[str, Callable[[str], tuple[Program, ...]]] = (
        listed.COMPILE_SUITES if compile_only else listed.SUITES
    )
    if suite not in suites:
        raise BenchError(f"fusepass bench: no suite {suite!r}{_near(suite, list(suites))}")
    return suites[suite](device)


def select(programs: Sequence[Program], only: Sequence[str]) -> list[Program]:
    """Programs whose name is in ``only``, begins with one of its entries, or matches one as a glob.

    Raises:
        BenchError: an entry selects nothing.
    """
    if not only:
        return list(programs)
    names = [program.name for program in programs]
    for entry in only:
        if not any(_selects(entry, name) for name in names):
            raise BenchError(f"fusepass bench: no program {entry!r}{_near(entry, names)}")
    return [program for program in programs if any(_selects(one, program.name) for one in only)]


def _selects(entry: str, name: str) -> bool:
    return name.startswith(entry) or fnmatchcase(name, entry)


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f".{hint} There are: {', '.join(known)}."
