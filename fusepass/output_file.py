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
    if path is None:
        return
    whole = path.resolve()
    if whole.is_dir():
        problem = f"{str(path)!r} is a folder; {option} takes the name of a file"
    elif not whole.parent.is_dir():
        problem = f"no folder {str(path.parent)!r} for {option}"
    elif not os.access(whole if whole.exists() else whole.parent, os.W_OK):
        problem = f"{str(path)!r} of {option} cannot be written"
    else:
        return
    raise BenchError(f"{command}: {problem}.")
