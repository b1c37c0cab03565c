"""Parse the text of Dynamo's errors, and say in one sentence what stopped a trace.

The sentence says what to write instead if that is known. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch._dynamo import exc

from fusepass.torch_private.dynamo.compile_state import is_internal_file
from fusepass.torch_private.dynamo.errors.wording import first_sentence, plain

_HEADING = re.compile(r"\A[^\n]*graph break[^\n]*:[ ]*\n\n", re.IGNORECASE)
_ENDS = r"(?=^  Hint: |^\s*Developer debug context: |^ For more details|\Z)"
_EXPLAINS = re.compile(rf"^  Explanation: (.*?){_ENDS}", re.MULTILINE | re.DOTALL)
_CONTEXT = re.compile(rf"^  Developer debug context: (.*?){_ENDS}", re.MULTILINE | re.DOTALL)
_UNTRACED = "torch.compile cannot trace what stands there"
_OUTSIDE = "call it outside of the compiled function"
_READ = "keep it a tensor, or read it outside of the compiled function"
# By Dynamo's name for what it met: what to look for in its explanation and context, and what to say
# with it. The first that is found counts.
_SENTENCES: tuple[tuple[str, str, str], ...] = (
    (r"Data-dependent branching", r"", "a branch tests a value of a tensor"),
    (r"Data-dependent assertion", r"", "an assertion tests a value of a tensor"),
    (
        r"Unsupported Tensor\.item",
        r"",
        f"`.item()`, `int()`, `float()` or `bool()` reads a number from a tensor: {_READ}",
    ),
    (r"Tensor\.tolist", r"", f"`.tolist()` reads numbers from a tensor: {_READ}"),
    (
        r"Data dependent operator",
        r"_local_scalar_dense",
        f"Python reads a number from a tensor or NumPy array: {_READ}",
    ),
    (
        r"Data dependent operator",
        r"aten\._?(?P<op>[a-zA-Z_]+)",
        "`{op}` gives Python a value that depends on what a tensor holds",
    ),
    (
        r"Dynamic shape operator",
        r"aten\._?(?P<op>[a-zA-Z_]+)",
        "`{op}` gives a tensor whose size depends on data: torch.where(mask, a, b) keeps the size",
    ),
    (
        r"Call to `torch\._dynamo\.graph_break",
        r"",
        "the program asks for a graph break (torch._dynamo.graph_break)",
    ),
    (
        r"compiler\.disable|_dynamo\.disable",
        r"(?:function|calling) `?(?P<name>[\w.]+)`?",
        "{name} is called, which torch.compiler.disable keeps from being compiled",
    ),
    (
        r"read undefined local",
        r"name `(?P<name>\w+)`",
        "the variable `{name}` is read, which need not be bound there",
    ),
    (r"Reconstruction", r"", "an object made in front of the graph break is needed behind it"),
    (
        r"when making fake tensor call",
        r"got (?P<kind>\w+)\((['\"])(?P<what>.*?)\2,?\)(?:\s|\Z)",
        "while tracing, it raises {kind} for these sizes and dtypes: {what}",
    ),
    (r"Graph break in inlined", r"", "the graph breaks in a function that is called there"),
    (
        r"graph break in loop",
        r"",
        "the graph breaks in a loop, so the function is not compiled: move the break out of it",
    ),
    (
        r"Graph break under",
        r"",
        "the graph breaks inside a with-block that torch.compile cannot leave and enter again",
    ),
    (
        r"Attempted to (?:call|inline) function marked as skipped",
        r"qualname: Tensor\.(?P<name>\w+)",
        (
            "the method {name} of a tensor was looked up in front of a graph break and is called "
            "behind it: write the call as a statement of its own"
        ),
    ),
    (
        r"Attempted to (?:call|inline) function marked as skipped",
        r"module: (?!None|<)(?P<module>[\w.]+), qualname: (?P<name>[\w.]+)",
        f"torch.compile does not trace {{module}}.{{name}}: {_OUTSIDE}",
    ),
    (
        r"Attempted to (?:call|inline) function marked as skipped",
        r"qualname: (?P<name>[\w.]+)",
        f"torch.compile does not trace {{name}}: {_OUTSIDE}",
    ),
    (
        r"logging\.Logger method",
        r"method: <\w+ (?P<logger>\S+) \(\w+\)>\.(?P<name>\w+)",
        "a line is logged there (method {name} of the logger {logger})",
    ),
    (
        r"numpy function",
        r"numpy function: <[\w -]*? ?'?(?P<name>[\w.]+)'?(?: at 0x\w+)?>",
        f"torch.compile cannot trace NumPy's {{name}}: use the function of torch, or {_OUTSIDE}",
    ),
    (
        r"Failed to trace builtin",
        r"builtin operator `(?P<name>\w+)` with argument types \[(?P<types>[^\]]*)\]",
        "torch.compile cannot trace the builtin {name} of these arguments: {types}",
    ),
    (
        r"Missing tp_iternext|Unsupported next",
        r"next\((?P<kind>[\w. ]+)\)",
        "torch.compile cannot trace next() of an object of class {kind}: loop over a list of it",
    ),
    (
        r"Unsupported method call",
        r"method `(?P<name>\w+)` of class `(?P<kind>[\w.]+)`",
        "torch.compile cannot trace the method {name} of an object of class {kind}",
    ),
    (
        r"Unsupported context manager",
        r"enter a `_GeneratorContextManager`",
        (
            "torch.compile cannot enter this with-block, which a function under @contextmanager "
            "makes: open it outside of the compiled function"
        ),
    ),
    (
        r"Unsupported context manager",
        r"enter a `(?P<kind>[\w.]+)`",
        "torch.compile cannot trace a with-block over an object of class {kind}",
    ),
    (
        r"HOP: Unsafe side effect",
        r"",
        "what existed before is written where torch.compile does not permit that",
    ),
    (
        r"Text of a tensor as a key",
        r"",
        (
            "torch.compile cannot look up a key or text made of a tensor, whose value is not known "
            "while tracing: make it of a number of Python's own, such as one of range()"
        ),
    ),
    (
        r"Observed exception",
        r"raised exception (?P<kind>\w+)\((['\"])(?P<what>.*)\2,?\)",
        "while tracing, {kind} is raised there and not caught, which eager need not do: {what}",
    ),
    (
        r"Observed exception",
        r"raised exception (?P<kind>\w+)",
        "while tracing, {kind} is raised there and not caught, which eager need not do",
    ),
    (
        r"Backend compiler",
        r"Exception:(?P<what>.*?)Traceback",
        "the graph cannot be compiled: {what}",
    ),
    (
        r"torch\.\* op returned non-Tensor",
        r"",
        (
            "a function of torch is called that gives no tensor, but a setting or a number: "
            "torch.compile cannot trace it"
        ),
    ),
    (
        r"[Ss]ort with non-constant key",
        r"",
        (
            "torch.compile cannot sort by keys made of tensors: use torch.sort, or sort outside of "
            "the compiled function"
        ),
    ),
    (
        r"setattr\(\) on Tensor",
        r"Tensor\.(?P<name>\w+)",
        "torch.compile cannot set {name} of a tensor: set it outside of the compiled function",
    ),
    (
        r"Operator does not support running with fake",
        r"operator: aten\.(?P<op>\w+)",
        "torch.compile cannot trace the operation {op}",
    ),
    (
        r"Custom op missing fake|no meta kernel",
        r"",
        "an operator has no implementation that tracing can use",
    ),
)


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


def why_stopped(error: BaseException) -> str:
    """The reason why an error of Dynamo, or of a call of the program, stopped a trace."""
    kind, parts = getattr(error, "gb_type", None), said(str(error))
    if kind or parts.explanation:
        return _sentence(parts, str(kind or parts.kind))
    return f"{python_error(error)} is raised ({plain(_first_line(str(error)), 'while tracing')})"


def why_broken(text: str) -> str:
    """The reason why a trace stopped, from the text that Dynamo logs for a graph break."""
    parts = said(text)
    return _sentence(parts, parts.kind)


def error_in_short(error: BaseException) -> str:
    """Class and first line of an error of torch's, without what only torch knows."""
    if said(str(error)).explanation:
        return why_stopped(error)
    first = plain(_first_line(str(error)), "")
    return f"{python_error(error)}: {first}" if first else python_error(error)


def _sentence(parts: Said, kind: str) -> str:
    about = f"{parts.explanation} {parts.context}"
    for name, pattern, sentence in _SENTENCES:
        found = re.search(pattern, about) if re.search(name, kind) else None
        if found is not None:
            return plain(sentence.format(**found.groupdict()), _UNTRACED)
    told = first_sentence(parts.explanation)
    if re.match(r"(?:This is )?(?:[Cc]urrently )?not supported|This is |\Z", told):
        told = plain(kind, "")  # which says more
        return f"torch.compile does not support it: {told}" if told else _UNTRACED
    return plain(told, "") or plain(kind, _UNTRACED)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
