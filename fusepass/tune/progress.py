"""A line on the terminal while candidates are compiled, for modes that take their time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO, TypeVar

_WIDTH = 20
_T = TypeVar("_T")


def progress_bar(
    items: Sequence[_T], name: str, *, wanted: bool, stream: TextIO | None = None
) -> Iterator[_T]:
    """The items, with a bar that says how many of them are done; it is gone when all are.

    Nothing is written where nobody would see it move: into a file or a pipe.

    Args:
        items: what is worked through.
        name: of the work.
        wanted: whether to show anything.
        stream: where to; standard error if None.
    """
    out = sys.stderr if stream is None else stream
    if not wanted or not out.isatty():
        yield from items
        return
    try:
        for done, item in enumerate(items):
            filled = _WIDTH * done // len(items)
            bar = "#" * filled + "." * (_WIDTH - filled)
            out.write(f"\r\x1b[Kfusepass: {name} [{bar}] {done + 1} of {len(items)}")
            out.flush()
            yield item
    finally:
        out.write("\r\x1b[K")
        out.flush()
