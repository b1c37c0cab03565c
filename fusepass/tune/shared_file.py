"""A JSON file that processes share without ever seeing half of it, and can do without.

One that cannot be understood is renamed; one that cannot be read or written, or that others may
have written (cache_files.py), is given up on. Either way there is one warning, and the process goes
on with what it has in memory.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fusepass.tune import cache_files

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

        Args:
            parse: raises ValueError for a text that was not written by :meth:`write`.
        """
        try:
            content = cache_files.read(self.path.parent, self.path.name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except cache_files.NotPrivate:
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
            cache_files.write(self.path.parent, self.path.name, text.encode())
        except cache_files.NotPrivate:
            self._usable = False
        except OSError as error:
            self._give_up(f"cannot be written ({error})")

    def _give_up(self, problem: str, advice: str = "") -> None:
        if self._usable:
            self._usable = False
            warnings.warn(self._warning(str(self.path), problem, advice), stacklevel=2)
