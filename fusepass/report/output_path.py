"""Files that commands are asked to write: looked at before the work is done, not after."""

from __future__ import annotations

import os
from pathlib import Path

from fusepass.errors import BenchError


def check_output(path: Path | None, command: str, option: str) -> None:
    """Raise unless a file can be written there.

    Args:
        path: what the option was given; None if it was not.
        command: as messages name it.
        option: its name, with dashes.

    Raises:
        BenchError: what stands in the way.
    """
    problem = problem_with(path, option)
    if problem is not None:
        raise BenchError(f"{command}: {problem}.")


def problem_with(path: Path | None, option: str) -> str | None:
    """What stands in the way of writing a file there, in words; None if nothing does."""
    if path is None:
        return None
    whole = path.resolve()
    if whole.is_dir():
        return f"{str(path)!r} is a folder; {option} takes the name of a file"
    if not whole.parent.is_dir():
        return f"no folder {str(path.parent)!r} for {option}"
    if not os.access(whole if whole.exists() else whole.parent, os.W_OK):
        return f"{str(path)!r} of {option} cannot be written"
    return None
