"""The version of fusepass that runs, and where it is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).parents[1]  # the folder of fusepass itself

try:
    VERSION = version("fusepass")
except PackageNotFoundError:  # a source tree that was never installed
    VERSION = "0+unknown"
