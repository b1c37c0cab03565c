"""For the report: in which arguments a call differs from the operation that the pattern has."""

from __future__ import annotations

from typing import Any

from fusepass.graph.terms import Term
from fusepass.rewrite.constants import is_dims, same_argument, same_dims, shown
from fusepass.rewrite.pattern import Operation, Variable

_ABSENT = object()


def differing(wanted: Operation, found: Term) -> str:
    """Arguments that are no tensors and differ; else those that are tensors on one side only."""
    mine, theirs = dict(wanted.args), dict(found.args)
    said = []
    for name in sorted({*mine, *theirs}):
        want, have = mine.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if _holds_tensors(want) or _holds_tensors(have):
            several = isinstance(want, tuple) and isinstance(have, tuple)
            if several and len(want) != len(have):
                said.append(f"{name}: {len(have)} (rule: {len(want)})")
        elif not _same(name, want, have, found):
            said.append(f"{name}={_shown(have)} (rule: {_shown(want)})")
    kinds = [
        name for name in mine if _holds_tensors(mine[name]) != _holds_tensors(theirs.get(name))
    ]
    return ", ".join(said) or f"{', '.join(kinds)} is of another kind"


def _same(name: str, want: Any, have: Any, found: Term) -> bool:
    if want is _ABSENT or have is _ABSENT:
        return False
    if is_dims(name, want):
        return same_dims(want, have, found)
    return same_argument(want, have, found)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds_tensors, value))
    return isinstance(value, (Operation, Variable, Term))


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else shown(value)
