"""Callables of the user's that are compiled now, and with what options.

What ``explain``, ``check_rule`` and their like compile is none of them, nor is what a reset has
dropped: only the compiled code that Dynamo holds counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusepass.errors import FusepassError
from fusepass.options import resolve
from fusepass.report import log
from fusepass.torch_private.dynamo.compile_state import runs_code_of


def anything_compiled() -> bool:
    """Whether a callable of the user's runs compiled code."""
    return next(_live(), None) is not None


def anything_differs() -> bool:
    """Whether one runs code compiled with other options than it would be compiled with here."""
    return any(map(_differs, _live()))


def _differs(record: log.GraphRecord) -> bool:
    try:
        return bool(resolve(*record.asked) != record.options)
    except FusepassError:  # an option it was given is none any more
        return False


def _live() -> Iterator[log.GraphRecord]:
    for compiler, found in log.logs():
        for record in found.graphs:
            if not record.is_trial and runs_code_of(record.code, compiler):
                yield record
