"""What every error and every warning of fusepass is; see :mod:`fusepass.errors`."""

from __future__ import annotations


class FusepassError(Exception):
    """Base of every error raised by fusepass."""


class FusepassWarning(UserWarning):
    """Base of every warning issued by fusepass."""
