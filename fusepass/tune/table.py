"""The table of choices: what was measured before, on this device with these versions.

Three layers, strongest first: entries somebody asked for (an explicit tune or import), entries
shipped with the package, entries learnt while compiling. The first and the last live in one plain
JSON file per device and torch version, in ``$FUSEPASS_CACHE_DIR`` or ``~/.cache/fusepass``. What
one machine has learnt by itself does not count in a job of several ranks, which have to agree.

What another process has written meanwhile is merged in before the file is replaced. If two do so in
the same instant, one may lose what it learnt, and will learn it again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fusepass.errors import ChoicesUnusable
from fusepass.tune.cache_files import CacheFile

SCHEMA = 1
_SHIPPED = Path(__file__).parent / "shipped"
_HOW = ("learnt", "tuned", "imported", "shipped")


@dataclass(frozen=True)
class ChoiceEntry:
    """One choice.

    Attributes:
        candidate: the winner's name.
        microseconds: what each candidate took.
        how: ``learnt`` while compiling, ``tuned`` or ``imported`` on request, or ``shipped``.
    """

    candidate: str
    microseconds: Mapping[str, float]
    how: str = "learnt"

    @property
    def is_explicit(self) -> bool:
        """Whether somebody put it there on purpose."""
        return self.how in ("tuned", "imported")


@dataclass
class ChoiceTable:
    """Choices for one device and one version of torch; see the module.

    Attributes:
        device: its name, as torch gives it.
        path: the file.
        epoch: changes when choices were changed on request, never by learning.
    """

    device: str
    path: Path
    epoch: int = 0
    entries: dict[str, ChoiceEntry] = field(default_factory=dict)
    _file: CacheFile = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._file = CacheFile(self.path, ChoicesUnusable)

    def find(self, key: str, *, same_everywhere: bool = False) -> ChoiceEntry | None:
        """The entry of a class of problems, or None.

        What only this machine has learnt is left out if the answer must be ``same_everywhere``.
        """
        entry = self.entries.get(key)
        if entry is not None and entry.is_explicit:
            return entry
        return shipped_entries(self.device).get(key) or (None if same_everywhere else entry)

    def add(self, key: str, entry: ChoiceEntry) -> None:
        """Keep a choice and write it down; one asked for starts a new epoch."""
        self.change({key: entry}, new_epoch=entry.is_explicit)

    def change(
        self,
        added: Mapping[str, ChoiceEntry],
        removed: Callable[[str, ChoiceEntry], bool] | None = None,
        *,
        new_epoch: bool,
    ) -> None:
        """Apply a change to what the file holds now, and write it."""
        found = self._read()
        if found is not None:
            epoch, stored = found
            # In a new epoch what was taken out stays out, though this process remembers it.
            self.entries = {**self.entries, **stored} if epoch == self.epoch else stored
            self.epoch = epoch
        if removed is not None:
            self.entries = {k: e for k, e in self.entries.items() if not removed(k, e)}
        for key, entry in added.items():
            held = self.entries.get(key)
            if entry.is_explicit or held is None or not held.is_explicit:
                self.entries[key] = entry
        self.epoch += new_epoch
        self.write()

    def _read(self) -> tuple[int, dict[str, ChoiceEntry]] | None:
        """Epoch and entries of the file; None where there is no usable file."""
        return self._file.read(lambda text: parse(text, self.device))

    def write(self) -> None:
        """Put the entries into the file, in place of what it holds."""
        self._file.write(
            {
                "schema": SCHEMA,
                "device": self.device,
                "epoch": self.epoch,
                "choices": {key: asdict(entry) for key, entry in sorted(self.entries.items())},
            }
        )


def open_table(device: str, folder: Path | None = None) -> ChoiceTable:
    """The table for a device, with what its file holds."""
    name = f"choices-{slug(device)}-torch-{slug(torch.__version__)}.json"
    table = ChoiceTable(device, (folder or default_folder()) / name)
    found = table._read()
    if found is not None:
        table.epoch, table.entries = found
    return table


def default_folder() -> Path:
    """``$FUSEPASS_CACHE_DIR``, or ``~/.cache/fusepass``."""
    given = os.environ.get("FUSEPASS_CACHE_DIR")
    return Path(given) if given else Path("~/.cache/fusepass").expanduser()


def parse(text: str, device: str) -> tuple[int, dict[str, ChoiceEntry]]:
    """Epoch and entries of a file's text.

    Raises:
        ValueError: it is not what :class:`ChoiceTable` writes for that device.
    """
    try:
        record: Any = json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"no JSON, or only the beginning of it: {error}" if text else "it is empty"
        raise ValueError(problem) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ValueError("not a table of choices of this version")
    if record.get("device") != device:
        raise ValueError(f"choices for another device, {record.get('device')!r}")
    epoch, choices = record.get("epoch"), record.get("choices")
    if type(epoch) is not int or not isinstance(choices, dict):
        raise ValueError("no epoch or no choices in it")
    return epoch, {key: _entry(key, value) for key, value in choices.items()}


def _entry(key: str, value: Any) -> ChoiceEntry:
    fields: dict[str, Any] = value if isinstance(value, dict) else {}
    times: Any = fields.get("microseconds")
    good = (
        isinstance(fields.get("candidate"), str)
        and isinstance(times, dict)
        and all(isinstance(time, int | float) for time in times.values())
        and fields.get("how") in _HOW
    )
    if not good:
        raise ValueError(f"a malformed choice for {key!r}")
    try:
        taken = {k: float(v) for k, v in times.items()}
    except OverflowError as error:  # JSON's integers have no largest
        raise ValueError(f"a malformed choice for {key!r}") from error
    return ChoiceEntry(fields["candidate"], taken, fields["how"])


def shipped_entries(device: str) -> Mapping[str, ChoiceEntry]:
    """Choices that come with the package for that device and this version of torch."""
    version = ".".join(torch.__version__.split(".")[:2])
    path = _SHIPPED / f"{slug(device)}-torch-{version}.json"
    if path not in _shipped:
        _shipped[path] = parse(path.read_text("utf-8"), device)[1] if path.exists() else {}
    return _shipped[path]


_shipped: dict[Path, Mapping[str, ChoiceEntry]] = {}  # the files do not change while a process runs


def slug(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
