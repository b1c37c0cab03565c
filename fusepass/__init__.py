"""fusepass: a torch.compile backend that turns graph breaks into graph, and says what it did.

``torch.compile(model, backend="fusepass")`` needs no import of this package; these names are for
looking in: :func:`explain`, :func:`last_report`, :func:`options`, :func:`reset`.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fusepass")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

from fusepass.errors import FusepassError, FusepassWarning
from fusepass.options import Options, options
from fusepass.report.explain import explain, last_report, reset
from fusepass.report.report import Report

__all__ = [
    "FusepassError",
    "FusepassWarning",
    "Options",
    "Report",
    "__version__",
    "explain",
    "last_report",
    "options",
    "reset",
]
