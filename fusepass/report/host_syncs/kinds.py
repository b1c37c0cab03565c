"""The closed list of ways in which a program makes the host wait for the device."""

from __future__ import annotations

import enum


class Kind(enum.StrEnum):
    """Why the host waits; docs/syncs.md has a section for each."""

    BRANCH = "branch"
    ITEM = "item"
    PRINT = "print"
    COPY_IN = "copy_in"
    COPY_OUT = "copy_out"
    NONZERO = "nonzero"
    SIZE = "size"
    OPERATION = "operation"
    SYNCHRONIZE = "synchronize"
    ALLOCATION = "allocation"
    READ_BACK = "read_back"
    UNKNOWN = "unknown"


# A number is read, whatever it is for.
READ = (Kind.BRANCH, Kind.ITEM, Kind.PRINT)
