"""Changing a table of choices on purpose; each call starts a new epoch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import torch

from fusepass.errors import ArgumentType, ChoicesNotImported, TuneDevice
from fusepass.tune.decide import table_for
from fusepass.tune.table import ChoiceEntry, ChoiceTable, parse

Device = torch.device | str | int | None


def import_choices(path: str | Path, device: Device = None) -> int:
    """Take the choices of another machine's file, so that every rank of a job has the same.

    Args:
        path: a file that fusepass wrote, for a device of the same name.
        device: None for the current CUDA device, or the CPU where there is none.

    Returns:
        How many choices were taken.

    Raises:
        ChoicesNotImported: the file cannot be read, or holds no choices for this device.
        ArgumentType: the path is none.
        TuneDevice: the device is none, or is not there.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentType("path of tune.import_choices", path, "the name of a file")
    table = _table(device)
    entries = _read(Path(path), table.device)
    taken = {key: dataclasses.replace(entry, how="imported") for key, entry in entries.items()}
    table.change(taken, new_epoch=True)
    return len(taken)


def prune(
    unwanted: Callable[[str, ChoiceEntry], bool] = lambda key, entry: True,
    device: Device = None,
) -> int:
    """Remove choices, so that they are measured again; by default all of them.

    Args:
        unwanted: given a choice's key and entry, whether to remove it.
        device: None for the current CUDA device, or the CPU where there is none.

    Returns:
        How many choices were removed.

    Raises:
        ArgumentType: ``unwanted`` is no function.
        TuneDevice: the device is none, or is not there.
    """
    if not callable(unwanted):
        raise ArgumentType("unwanted of tune.prune", unwanted, "a function of a key and an entry")
    table = _table(device)
    before = len(table.entries)
    table.change({}, unwanted, new_epoch=True)
    return before - len(table.entries)


def _read(path: Path, device: str) -> dict[str, ChoiceEntry]:
    advice = "give the file of choices that fusepass wrote where a device of this name was tuned"
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ChoicesNotImported(path, "it is no text", advice) from error
    except (OSError, ValueError) as error:  # ValueError: no name of a file, as with a NUL in it
        raise ChoicesNotImported(path, f"it cannot be read ({error})", advice) from error
    try:
        return parse(text, device)[1]
    except ValueError as error:
        raise ChoicesNotImported(path, f"{error} (this device is {device!r})", advice) from error


def _table(given: Device) -> ChoiceTable:
    """The table of a device a caller named."""
    try:
        device = _current() if given is None else torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise TuneDevice(given, str(error)) from None
    if device.type not in ("cpu", "cuda"):
        raise TuneDevice(given, "choices are kept for CUDA devices and the CPU")
    try:
        return table_for(device)
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that it is not there
        raise TuneDevice(given, str(error)) from error


def _current() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
