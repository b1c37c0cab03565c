"""Whether Inductor can write to its cache folder; if not, a temporary one takes its place.

Inductor writes the code it generates there before it loads it, so that a folder it cannot write to
ends the user's program. Damaged entries it sets aside by itself.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import warnings
from pathlib import Path

from fusepass import torch_private
from fusepass.errors import CacheUnusable

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def ensure_writable() -> None:
    """Point Inductor at a folder of this process's own if it could not write to the one it has.

    Warns:
        CacheUnusable: once per folder that cannot be written to.
    """
    folder = torch_private.inductor_cache_folder()
    problem = _problem(folder)
    if problem is not None:
        warnings.warn(CacheUnusable(folder, problem), stacklevel=2)
        os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="fusepass-cache-")
        atexit.register(shutil.rmtree, os.environ[_VARIABLE], ignore_errors=True)


@functools.cache
def _problem(folder: str) -> str | None:
    """Why a folder cannot be used, found by writing a file into it; None when it can."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"fusepass")
    except OSError as error:
        return f"cannot be written to ({error.strerror or error})"
    return None
