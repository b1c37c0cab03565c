"""Paths: source files as tables show them, and files that commands are asked to write."""

from __future__ import annotations

import os
from pathlib import Path

from fusepass.errors import BenchError


def short_path(path: str) -> str:
    """A path that finds the file and fits into a table.

    Relative to the working directory if the file lies in it; then the last three parts at most.
    """
    if not path:
        return ""
    file = Path(path)
    if file.is_absolute() and file.is_relative_to(Path.cwd()):
        file = file.relative_to(Path.cwd())
    return str(Path(*file.parts[-3:]))


def check_output(path: Path | None, command: str, option: str) -> None:
    """Raise BenchError unless a file can be written there; ``command`` is its name in messages."""
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
