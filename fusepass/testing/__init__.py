"""Tests for rules: a property test of a rule by itself, and assertions about single programs.

:func:`check_rule` looks for a program that a rule changes. :func:`assert_rewrites`,
:func:`assert_untouched` and :func:`assert_error` say what must happen to a program of yours;
:func:`assert_no_syncs` that the host never waits for the device in it. The pytest plugin is found
by pytest itself. Nothing here imports torch or Hypothesis until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusepass.testing.assertions import assert_error, assert_rewrites, assert_untouched
    from fusepass.testing.check import check_rule
    from fusepass.testing.no_syncs import assert_no_syncs
    from fusepass.testing.profiles import RuleCheck

__all__ = [
    "RuleCheck",
    "assert_error",
    "assert_no_syncs",
    "assert_rewrites",
    "assert_untouched",
    "check_rule",
]

_HOME = {
    "RuleCheck": "fusepass.testing.profiles",
    "assert_error": "fusepass.testing.assertions",
    "assert_no_syncs": "fusepass.testing.no_syncs",
    "assert_rewrites": "fusepass.testing.assertions",
    "assert_untouched": "fusepass.testing.assertions",
    "check_rule": "fusepass.testing.check",
}

# Public in 0.1.0; they test fusepass itself, and are part of the repository now.
_MOVED = {
    "Program": "tests.fuzz.program",
    "ProgramDiffers": "tests.fuzz.strategy",
    "check_program": "tests.fuzz.strategy",
    "programs": "tests.fuzz.strategy",
}


if not TYPE_CHECKING:  # a type checker would take any name to be there

    def __getattr__(name: str) -> Any:
        if name in _MOVED:
            raise AttributeError(
                f"fusepass.testing.{name} is {_MOVED[name]}.{name} now, which is part of the "
                "repository and not of the wheel: import it from there, in a checkout."
            )
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return __all__
