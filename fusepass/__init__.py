"""fusepass: a torch.compile backend that turns graph breaks into graph, and says what it did.

``torch.compile(model, backend="fusepass")`` needs no import of this package; these names are for
looking in: :func:`explain`, :func:`last_report`, :func:`options`, :func:`reset`; and for rules of
one's own: :class:`Rule`, :class:`Reject`.

What needs torch is imported when it is first asked for: pytest imports this package in every
session of every project it is installed beside.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusepass.errors import FusepassError, FusepassWarning

# Not by name below: once imported, the module of that name would stand in front of the function.
from fusepass.options import Options
from fusepass.report.decision import Reason
from fusepass.report.version import VERSION
from fusepass.rewrite.option_scope import options

__version__ = VERSION

if TYPE_CHECKING:
    from fusepass import testing as testing
    from fusepass.prefetching.api import prefetch
    from fusepass.report.explain import explain, last_report, reset
    from fusepass.report.host_syncs.api import syncs
    from fusepass.report.host_syncs.result import Syncs
    from fusepass.report.report import Report
    from fusepass.rewrite.registry import register, rules, unregister
    from fusepass.rewrite.rule import Accept, Match, Reject, Rule

__all__ = [
    "Accept",
    "FusepassError",
    "FusepassWarning",
    "Match",
    "Options",
    "Reason",
    "Reject",
    "Report",
    "Rule",
    "Syncs",
    "__version__",
    "explain",
    "last_report",
    "options",
    "prefetch",
    "register",
    "reset",
    "rules",
    "syncs",
    "unregister",
]

_HOME = {
    "Accept": "fusepass.rewrite.rule",
    "Match": "fusepass.rewrite.rule",
    "Reject": "fusepass.rewrite.rule",
    "Report": "fusepass.report.report",
    "Rule": "fusepass.rewrite.rule",
    "Syncs": "fusepass.report.host_syncs.result",
    "explain": "fusepass.report.explain",
    "last_report": "fusepass.report.explain",
    "prefetch": "fusepass.prefetching.api",
    "register": "fusepass.rewrite.registry",
    "reset": "fusepass.report.explain",
    "rules": "fusepass.rewrite.registry",
    "syncs": "fusepass.report.host_syncs.api",
    "unregister": "fusepass.rewrite.registry",
}


if not TYPE_CHECKING:  # a type checker would take any name to be there

    def __getattr__(name: str) -> Any:
        if name == "testing":  # a module: also without an import of its own
            return importlib.import_module("fusepass.testing")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return __all__
