"""What every error and every warning of fusepass is, and words that several share.

See :mod:`fusepass.errors`.
"""

from __future__ import annotations


class FusepassError(Exception):
    """Base of every error raised by fusepass."""


class FusepassWarning(UserWarning):
    """Base of every warning issued by fusepass."""


def device_refused(device: object, problem: str) -> tuple[str, str]:
    """What was given for a device, and why torch does not take it, as one line each."""
    first = problem.strip().split("\n")[0].rstrip(". ")
    if "invalid combination" in first:  # torch lists all its signatures
        first = f"a {type(device).__name__} is no device"
    shown = repr(str(device) if type(device).__name__ == "device" else device)
    return shown[:200], first
