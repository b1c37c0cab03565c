"""Files of the cache folder: written whole, and read only where nobody else can have written them.

What lies there decides what runs, and some of it is code for the GPU. So a folder or a file that
belongs to somebody else, or that others may write, is used as little as ssh uses such a key: it is
neither read nor written, with one warning. Root may own it; who is root can do anything anyway.

A file is written beside its place, under a lock that ends with its process, and moved there.
The next process that writes removes what killed processes have left.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import secrets
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fusepass.errors import CacheNotPrivate

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_BESIDE = re.compile(r"\.(?P<name>.+)\.(?:(?P<token>[0-9a-f]{16})\.new|(?P<pid>\d+)\.\d+)")


class NotPrivate(OSError):
    """A folder or file is not this user's alone; the user was told."""


def read(root: Path, name: str) -> bytes:
    """The content of a file.

    Raises:
        NotPrivate: somebody else may have written it.
        OSError: it is not there, or cannot be read.
    """
    path = root / name
    _check_folders(root, path.parent)
    with open(path, "rb", opener=_without_waiting) as file:
        _check(path, os.fstat(file.fileno()))
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; should it be a pipe, without waiting for the other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write(root: Path, name: str, content: bytes) -> None:
    """Put a file in place, in place of one that is there.

    Raises:
        NotPrivate: others can write the folder.
        OSError: the file cannot be written.
    """
    path = root / name
    for folder in dict.fromkeys((root, path.parent)):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_folders(root, path.parent)
    _remove_stale(path.parent)
    with _beside(path) as (new, file):
        with open(file, "wb", closefd=False) as stream:
            stream.write(content)
        new.replace(path)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[tuple[Path, int]]:
    """A new file, locked, which is gone afterwards or in its place."""
    while True:
        new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        if _lock(file) is not False and os.fstat(file).st_nlink:
            break
        os.close(file)  # somebody took it for a stale one before it was locked
    try:
        yield new, file
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)


def _lock(file: int) -> bool | None:
    """Whether a file could be locked; None where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_stale(folder: Path) -> None:
    """Remove what was to be moved into place by processes that are gone."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            found = _BESIDE.fullmatch(entry.name)
            if found is not None and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_stale(Path(entry.path), found["pid"])


def _remove_if_stale(path: Path, pid: str | None) -> None:
    if pid is not None:  # as fusepass 0.1.0 named them, which locked none
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, OverflowError):
            path.unlink()
        return
    file = os.open(path, os.O_WRONLY)
    try:
        if _lock(file):
            path.unlink()
    finally:
        os.close(file)


def _check_folders(root: Path, folder: Path) -> None:
    for path in dict.fromkeys((root, folder)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _check(path, path.stat())


def _check(path: Path, found: os.stat_result) -> None:
    problem = _problem(found)
    if problem is not None:
        _warn_not_private(str(path), problem, stat.S_ISDIR(found.st_mode))
        raise NotPrivate(f"{path} {problem}")


def _problem(found: os.stat_result) -> str | None:
    """Why somebody else may have written a folder or file; None if nobody can have."""
    if not hasattr(os, "geteuid"):
        return None
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({_name_of(found.st_uid)})"
    if found.st_mode & _OTHERS_WRITE:
        return f"can be written by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _name_of(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"number {user}"


@functools.cache
def _warn_not_private(path: str, problem: str, is_folder: bool) -> None:
    warnings.warn(CacheNotPrivate(path, problem, is_folder=is_folder), stacklevel=2)


# --- A JSON file that processes share without ever seeing half of it, and can do without ----------
# One that cannot be understood is renamed; one that cannot be read or written, or that others may
# have written (cache_files.py), is given up on. Either way there is one warning, and the process
# goes on with what it has in memory.

T = TypeVar("T")


class CacheFile:
    """One such file.

    Args:
        path: where it is, or will be.
        warning: made from the path, what is wrong with it, and, where making the folder writable
            is not it, what to do.
    """

    def __init__(self, path: Path, warning: Callable[..., Warning]) -> None:
        self.path, self._warning, self._usable = path, warning, True

    def read(self, parse: Callable[[str], T]) -> T | None:
        """What ``parse`` makes of the text; None where there is no usable file.

        ``parse`` raises ValueError for a text that :meth:`write` has not written.
        """
        try:
            content = read(self.path.parent, self.path.name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotPrivate:
            self._usable = False
            return None
        except OSError as error:
            advice = "; make the file readable, or remove it"
            self._give_up(f"cannot be read ({error})", advice)
            return None
        try:
            return parse(content.decode("utf-8"))
        except ValueError as error:  # also of bytes that are no text
            beside = self.path.with_name(f"{self.path.name}.damaged")
            try:
                self.path.replace(beside)
            except OSError:
                self._give_up(f"is damaged ({error}) and cannot be renamed")
            else:
                what = f"was damaged ({error}) and is now {beside.name}"
                advice = " and writes the file anew; nothing is to be done"
                warnings.warn(self._warning(str(self.path), what, advice), stacklevel=2)
            return None

    def write(self, record: Mapping[str, Any]) -> None:
        """Replace the file; nothing happens once it was given up on."""
        if not self._usable:
            return
        text = json.dumps(record, indent=1) + "\n"
        try:
            write(self.path.parent, self.path.name, text.encode())
        except NotPrivate:
            self._usable = False
        except OSError as error:
            self._give_up(f"cannot be written ({error})")

    def _give_up(self, problem: str, advice: str = "") -> None:
        if self._usable:
            self._usable = False
            warnings.warn(self._warning(str(self.path), problem, advice), stacklevel=2)
