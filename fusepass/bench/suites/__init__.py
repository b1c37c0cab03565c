"""Suites: named lists of programs, written down here and nowhere else."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from fusepass.bench.program import Program
from fusepass.bench.suites import (
    conv,
    elementwise,
    gated,
    host,
    linear,
    models,
    plain,
    sync,
    training,
)
from fusepass.errors import BenchError

Programs = Callable[[str], tuple[Program, ...]]
SUITES: dict[str, Programs] = {
    "sync": sync.programs,
    "linear": linear.programs,
    "gated": gated.programs,
    "conv": conv.programs,
    "elementwise": elementwise.programs,
    "models": models.programs,
    "training": training.programs,
    "plain": plain.programs,
    "host": host.programs,
}
COMPILE_SUITES: dict[str, Programs] = {
    "sync": sync.compile_programs,
    "linear": linear.compile_programs,
    "gated": gated.programs,
    "conv": conv.programs,
    "elementwise": elementwise.programs,
    "models": models.programs,
    "training": training.compile_programs,
    "plain": plain.programs,
    "host": host.programs,
}


def suite_programs(suite: str, device: str, *, compile_only: bool = False) -> tuple[Program, ...]:
    """Every program of a suite, sized for ``device`` ("cuda" or "cpu").

    Args:
        suite: a key of :data:`SUITES`.
        device: decides sizes and dtype.
        compile_only: the programs for the compile-time table.

    Raises:
        BenchError: no such suite.
    """
    if suite not in SUITES:
        raise BenchError(f"fusepass bench: no suite {suite!r}{_near(suite, list(SUITES))}")
    return (COMPILE_SUITES if compile_only else SUITES)[suite](device)


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
