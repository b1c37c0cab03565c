"""Graph breaks that are Dynamo's own: each gets a decision, with a cause and what to write instead.

Dynamo says what it met in words about itself. Those that programs meet often are put in others
here; of the rest its first sentence is taken, unless that names what is inside Dynamo.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fusepass.capture.frame import Frame
from fusepass.graph.canonical import op_name
from fusepass.report import log
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.report.users_code import is_users_file

Place = tuple[str, int]
_Why = tuple[Reason, str]

_SIZES: dict[str, str] = {
    "bincount": "torch.nn.functional.one_hot(x, n).sum(0) has a size that is known",
    "nonzero": "a mask over all elements has a size that is known",
    "repeat_interleave": "pass output_size",
    "unique": "sort, and compare neighbours: (s[1:] != s[:-1]).sum() + 1 is how many there are",
    "unique_consecutive": "(x[1:] != x[:-1]).sum() + 1 is how many there are",
}
_READS: dict[str, str] = {
    "__getitem__": "x[i.reshape(1)].squeeze(0) selects without reading i",
    "__setitem__": "x[i.reshape(1)] = v stores without reading i",
    "allclose": "torch.isclose(a, b).all() gives the answer as a tensor",
    "equal": "(a == b).all() gives the answer as a tensor",
    "gaussian_nll_loss": "it asks whether a variance is negative: with v = var.clamp(min=eps) "
    "compute 0.5 * (v.log() + (input - target) ** 2 / v)",
    "getitem": "x[i.reshape(1)].squeeze(0) selects without reading i",
    "is_nonzero": "test the tensor itself",
    "setitem": "x[i.reshape(1)] = v stores without reading i",
}
_TEXTS: dict[str, _Why] = {
    "Attempted to wrap sparse Tensor": (
        Reason.UNTRACEABLE,
        "a sparse tensor: torch compiles operations on dense ones only",
    ),
    "Call to `torch._dynamo.graph_break()`": (
        Reason.UNTRACEABLE,
        "the program asks for a graph break here (torch._dynamo.graph_break)",
    ),
    "Data-dependent branching": (
        Reason.PREDICATE,
        "Python asks here whether a tensor is true",
    ),
    "Failed to convert args/kwargs to proxy": (
        Reason.UNTRACEABLE,
        "an argument of this call is none that a graph can hold: a tensor, a number, a string",
    ),
    "RuntimeError when making fake tensor call": (
        Reason.UNTRACEABLE,
        "a call fails for tensors of these shapes and dtypes, as it does in eager mode",
    ),
    "Skip calling `torch.compiler.disable()`d function": (
        Reason.UNTRACEABLE,
        "this function is not to be compiled: torch.compiler.disable was put on it",
    ),
    "Tensor.retain_grad() with AOTDispatcher": (
        Reason.UNTRACEABLE,
        "retain_grad of a tensor that compiled code makes: return it, and call retain_grad outside",
    ),
    "Unsupported Tensor.backward() call": (
        Reason.UNTRACEABLE,
        "backward() in the middle of a graph: call it outside of the compiled function",
    ),
    "Unsupported Tensor.item() call with capture_scalar_outputs=False": (
        Reason.PYTHON_VALUE,
        "a number is read from a tensor here",
    ),
    "Unsupported Tensor.requires_grad_() call": (
        Reason.UNTRACEABLE,
        "requires_grad_() in compiled code: call it before, outside",
    ),
}
_INSIDE = re.compile(
    r"Variable|SymNode|HOP\b|Observed|proxy|L\[|0x[0-9a-f]{6}|speculat", re.IGNORECASE
)
_GIVES_UP = {
    "Compiling up to": "the rest of the function runs in eager mode",
    "Skipping the function": "the function runs in eager mode",
}
_PARTS = re.compile(r"^ {2}(Explanation|Hint): ?(.*)$", re.MULTILINE)


def decide(translator: Any, frame: Frame, reason: str, places: Sequence[Place]) -> None:
    """Put the reason of a graph break on record, if capture has not said why already.

    Args:
        translator: Dynamo's, of the frame.
        frame: of capture.
        reason: what Dynamo logs.
        places: where it is, outermost function first.
    """
    kept = log.log_of(frame.compiler).kept.values()
    if not places or any((d.file, d.line) in places for d in kept if d.station is Station.CAPTURE):
        return
    own = [place for place in places if is_users_file(place[0])] or places
    code, text = _why(translator, log.what_was_met(reason))
    gives_up = next((how for mark, how in _GIVES_UP.items() if mark in reason), None)
    text = text if gives_up is None else f"{text}; {gives_up}"
    decision = Decision(
        Station.TRACE, "graph_break", Outcome.REJECTED, code, text, "keep", *own[-1]
    )
    log.kept(frame.compiler, decision, ("graph_break", *own[-1], text))


def _why(translator: Any, met: str) -> _Why:
    kind, _, rest = met.partition("\n")
    kind = kind.strip()
    if kind == "Data dependent operator":
        name = _operation(translator, rest)
        return Reason.PYTHON_VALUE, _joined(f"{name} reads a number from a tensor", _READS, name)
    if kind.startswith("Dynamic shape operator"):
        name = _operation(translator, rest)
        return Reason.SIZE, _joined(f"the size of what {name} gives depends on data", _SIZES, name)
    for start, why in _TEXTS.items():
        if kind.startswith(start):
            return why
    explained = next((t for part, t in _PARTS.findall(rest) if part == "Explanation"), "")
    first = re.split(r"\.\s+(?=[A-Z])", explained, maxsplit=1)[0]
    for text in (first.strip(" ."), kind):
        if text and not _INSIDE.search(text):
            return Reason.UNTRACEABLE, text
    return Reason.UNTRACEABLE, "torch cannot trace this statement"


def _joined(text: str, instead: dict[str, str], name: str) -> str:
    return f"{text}: {instead[name]}" if name in instead else text


def _operation(translator: Any, rest: str) -> str:
    """The operation that a graph breaks at: the last one recorded, or the one Dynamo names."""
    last = next(iter(reversed(translator.output.graph.nodes)), None)
    name = None if last is None or "example_value" in last.meta else op_name(last)
    found = re.search(r"aten\.(\w+)", rest)
    return name or (found.group(1) if found is not None else "an operation")
