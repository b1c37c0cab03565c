"""Changing a table of choices on purpose; each call starts a new epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from fusepass.tune.decide import table_for
from fusepass.tune.table import Entry, parse


def import_choices(path: str | Path, device: torch.device | None = None) -> int:
    """Take the choices of another machine's file, so that every rank of a job has the same.

    Args:
        path: a file that fusepass wrote, for a device of the same name.
        device: None for the current CUDA device, or the CPU where there is none.

    Returns:
        How many choices were taken.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no choices, or choices for another device.
    """
    table = table_for(device or _current())
    _, entries = parse(Path(path).read_text(encoding="utf-8"), table.device)
    taken = {key: dataclasses.replace(entry, how="imported") for key, entry in entries.items()}
    table.change(taken, new_epoch=True)
    return len(taken)


def prune(
    unwanted: Callable[[str, Entry], bool] = lambda key, entry: True,
    device: torch.device | None = None,
) -> int:
    """Remove choices, so that they are measured again; by default all of them.

    Args:
        unwanted: given a choice's key and entry, whether to remove it.
        device: None for the current CUDA device, or the CPU where there is none.

    Returns:
        How many choices were removed.
    """
    table = table_for(device or _current())
    before = len(table.entries)
    table.change({}, unwanted, new_epoch=True)
    return before - len(table.entries)


def _current() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
