"""Whether Inductor can use its cache folder; if not, a temporary one takes its place.

Inductor writes the code it generates there before it loads it, so that a folder it cannot write to
ends the user's program. Damaged records of compiled graphs it sets aside by itself. What it has
generated it loads as it finds it: a damaged module or library there fails, in every process.
"""

from __future__ import annotations

import atexit
import errno
import functools
import os
import re
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from fusepass.errors import CacheDamaged, CacheUnusable, FusepassWarning
from fusepass.torch_private.inductor.compile import clear_inductor_caches, inductor_cache_folder

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def ensure_writable() -> None:
    """Point Inductor at a folder of this process's own if it could not write to the one it has.

    Warns:
        CacheUnusable: once per folder that cannot be written to.
    """
    folder = inductor_cache_folder()
    problem = _problem(folder)
    if problem is not None:
        warnings.warn(CacheUnusable(folder, problem), stacklevel=2)
        use_temporary_folder()


def use_temporary_folder() -> Callable[[], None]:
    """Point Inductor at an empty folder of this process's own; what is returned goes back."""
    before = os.environ.get(_VARIABLE)
    made = os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="fusepass-cache-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)

    def restore() -> None:
        clear_inductor_caches()
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before

    clear_inductor_caches()
    return restore


def damaged_file_advice(error: BaseException) -> FusepassWarning | None:
    """What to say of a file in the cache folder that may have made a compile fail.

    Only that the compile works in an empty folder shows that the file was to blame.

    Returns:
        None if the error names no file of the folder.
    """
    folder = inductor_cache_folder()
    for one in _error_chain(error):
        named = _file_named_by(one, folder)
        if isinstance(one, OSError) and one.errno in _NOT_WRITTEN:
            return CacheUnusable(named or folder, f"cannot be written ({one.strerror})")
        if named:
            first, *_ = str(one).strip().splitlines() or [type(one).__name__]
            return CacheDamaged(named, folder, f"{type(one).__name__}: {first}")
    return None


def _error_chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those it was raised for, the first cause first."""
    found, waiting = list[BaseException](), [error]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.append(one)
            inner = (one.__cause__, one.__context__, getattr(one, "inner_exception", None))
            waiting += [other for other in inner if other is not None]
    return reversed(found)


def _file_named_by(error: BaseException, folder: str) -> str | None:
    """The file of a folder that an error is about: in its text, or where it was raised."""
    module = getattr(error, "obj", None)  # that has no such attribute: an empty file, say
    files = [getattr(error, "filename", None), getattr(module, "__file__", None)]
    texts = [*(str(file or "") for file in files), str(error)]
    texts += [frame.filename for frame in reversed(traceback.extract_tb(error.__traceback__))]
    pattern = re.compile(re.escape(folder + os.sep) + r"[^\s'\":,)]+")
    return next(
        (found.group() for text in texts for found in [pattern.search(text)] if found), None
    )


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
