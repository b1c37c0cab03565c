"""Source paths as tables show them."""

from __future__ import annotations

from pathlib import Path


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
