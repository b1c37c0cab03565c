"""Parse the text of Dynamo's errors. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fusepass.torch_private.dynamo.compile_state import is_internal_file

_HEADING = re.compile(r"\A[^\n]*graph break[^\n]*:[ ]*\n\n", re.IGNORECASE)
_ENDS = r"(?=^  Hint: |^\s*Developer debug context: |^ For more details|\Z)"
_EXPLAINS = re.compile(rf"^  Explanation: (.*?){_ENDS}", re.MULTILINE | re.DOTALL)
_CONTEXT = re.compile(rf"^  Developer debug context: (.*?){_ENDS}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Said:
    """Parts of the text of an error.

    Attributes:
        kind: one of Dynamo's names for what it cannot do; of another error, its first line.
        explanation: of what was met, for a user; may be empty.
        context: of what was met, for Dynamo's developers; may be empty.
    """

    kind: str
    explanation: str = ""
    context: str = ""


def said(text: str) -> Said:
    """Take the text of a graph break apart: of what was met, not of what comes of it."""
    met = _HEADING.sub("", text)
    kind = next((line.strip() for line in met.split("\n") if line.strip()), "")
    explanation, context = (found.search(met) for found in (_EXPLAINS, _CONTEXT))
    return Said(
        kind,
        " ".join(explanation[1].split()) if explanation else "",
        " ".join(context[1].split()) if context else "",
    )


def python_error(error: BaseException) -> str:
    """The name of the class that a program would catch an error by.

    Dynamo has classes of its own for an exception that the traced program raises, and for errors
    of its own that are of one of Python's.
    """
    from torch._dynamo import exc

    for raised, observed in exc.observed_exception_map.items():
        if type(error) is observed:
            return str(raised.__name__)
    kinds = (kind for kind in type(error).__mro__ if kind.__module__.split(".")[0] != "torch")
    return next(kinds).__name__


def place_of(error: BaseException | None, own: Any = None) -> tuple[str, int] | None:
    """File and line of the program where an error of a trace arose; None if it does not say.

    Args:
        error: the error.
        own: code that the caller knows the line of better: in code that goes on behind a graph
            break, the error has that of whatever came last that has one. None for it.
    """
    for place in reversed(getattr(error, "real_stack", None) or ()):
        if not (is_internal_file(place.filename) or place.filename.startswith("<frozen")):
            here = own is not None and _is_in(own, place)
            return None if here else (place.filename, int(place.lineno or 0))
    return None


def _is_in(code: Any, place: Any) -> bool:
    """Whether a place is in the function of some code; methods of one file may share a name."""
    lines = [line for _, _, line in code.co_lines() if line]
    named = (place.filename, place.name) == (code.co_filename, code.co_name)
    return named and min(lines) <= (place.lineno or 0) <= max(lines)
