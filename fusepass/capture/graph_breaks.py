"""Record a decision for each of Dynamo's own graph breaks: its cause, and what to write instead.

What programs meet often has a code and advice here. The rest is said in the words of
torch_private/dynamo/errors/stop_reasons.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusepass.capture.frame_state import Frame
from fusepass.capture.source_position import Line, in_program, lines_traced
from fusepass.graph.ops.op_names import display_name, op_name
from fusepass.report import log
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.report.user_code import is_torchs_file
from fusepass.torch_private.dynamo.errors.error_hooks import raised_at
from fusepass.torch_private.dynamo.errors.stop_reasons import place_of, said, why_broken
from fusepass.torch_private.dynamo.print_calls import function_name, written_name

Place = tuple[str, int]
_COMPREHENSIONS = ("<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>")
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
_NUMPY = (
    "torch.compile traces NumPy as tensors, so that breaks the graph; use Python's own numbers "
    "there (math, random, sum), or call it outside of the compiled function"
)
_SIZED = ("arange", "empty", "full", "ones", "rand", "randint", "randn", "zeros")
_READS |= dict.fromkeys(_SIZED, "as a size; the largest size there can be and a mask need none")
_TEXTS: dict[str, _Why] = {
    "Attempted to wrap sparse Tensor": (
        Reason.UNTRACEABLE,
        "a sparse tensor: torch compiles operations on dense ones only",
    ),
    "Data-dependent branching": (
        Reason.PREDICATE,
        (
            "a branch tests a tensor, or a number of NumPy's, which torch.compile traces as a "
            "tensor: make such a number with Python's own (math, //, %)"
        ),
    ),
    "Failed to convert args/kwargs to proxy": (
        Reason.UNTRACEABLE,
        "an argument of this call is none that a graph can hold: a tensor, a number, a string",
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
_GIVES_UP = {
    "Compiling up to": "the rest of {} runs in eager mode",
    "Skipping the function": "{} runs in eager mode",
}


class Cause(NamedTuple):
    """Why a graph breaks.

    Attributes:
        place: file and line of the program's statement.
        code, text: the reason.
        innermost: the line of a library or of the program that the graph breaks in.
        is_kept: whether capture has left the graph break there, and has said why.
    """

    place: Place
    code: Reason
    text: str
    innermost: Place
    is_kept: bool


def cause_of(translator: Any, frame: Frame, reason: str, error: BaseException | None) -> Cause:
    """The cause of a graph break: what capture has on record there, or what Dynamo says."""
    lines = lines_to(translator, error, reason)
    place = in_program(translator, lines)
    kept = log.log_of(frame.compiler).kept.values()
    known = {(d.file, d.line): d for d in kept if d.station is Station.CAPTURE}
    inner = _innermost(lines)
    for one in (place, *(line[:2] for line in lines)):
        if one in known:
            return Cause(one, known[one].reason_code, known[one].reason, inner, is_kept=True)
    return Cause(place, *_why(translator, reason), inner, is_kept=False)


def decide(translator: Any, frame: Frame, reason: str, error: BaseException | None) -> None:
    """Put a graph break on record, and why it is, if capture has not said that already."""
    if _is_empty_comprehension(translator):  # of a function that runs in eager mode
        return
    cause = cause_of(translator, frame, reason, error)
    code, text = _why(translator, reason)
    broken = (text, *cause.place)
    news = log.graph_break(frame.compiler, *broken)
    if cause.is_kept:
        return
    key = (*cause.innermost, "graph_break", *cause.place, text)
    gives_up = next((how for mark, how in _GIVES_UP.items() if mark in reason), None)
    if gives_up is not None:
        text += f"; {gives_up.format(name_of(translator))}"
    elif key in log.log_of(frame.compiler).kept:
        return
    if news and frame.attempts is not None:
        frame.attempts.broken.append((broken, key))
    where = cause.place
    decision = Decision(Station.TRACE, "graph_break", Outcome.REJECTED, code, text, "keep", *where)
    log.kept(frame.compiler, decision, key)


def lines_to(translator: Any, error: BaseException | None, reason: str) -> list[Line]:
    """The lines that lead to a graph break, innermost first."""
    raised = raised_at(translator) if "Observed exception" in reason else []
    if raised:
        return [Line(*one) for one in raised]
    if place_of(error, translator.f_code) is None:
        return lines_traced(translator, translator.current_instruction)
    return [
        Line(one.filename, int(one.lineno or 0), written_name(one.name))
        for one in reversed(getattr(error, "real_stack", ()))
    ]


def _innermost(lines: Sequence[Line]) -> Place:
    """The line of a library or of the program that a graph breaks in."""
    return next((one[:2] for one in lines if not is_torchs_file(one.file)), lines[0][:2])


def ends_at(translator: Any, error: BaseException) -> str:
    """The line at which an error ends the trace of a frame."""
    file, line = in_program(translator, lines_to(translator, error, str(error)))
    return f"{Path(file).name}:{line}"


def _is_empty_comprehension(translator: Any) -> bool:
    """Whether a frame is a comprehension by itself, and nothing of it has been recorded."""
    if translator.f_code.co_name not in _COMPREHENSIONS or translator.parent is not None:
        return False
    return not any(node.op.startswith("call") for node in translator.output.graph.nodes)


def name_of(translator: Any) -> str:
    """The function that is being compiled, for a person."""
    name = function_name(translator.f_code)
    return "the function" if name.startswith("<") else f"`{name}`"


def _why(translator: Any, reason: str) -> _Why:
    kind = said(reason).kind
    if kind == "Data dependent operator":
        name = _operation(translator, reason)
        text = f"{display_name(name)} reads a number from a tensor"
        if name.startswith("wrapped_"):
            text = f"Python reads a number that {display_name(name)} gives or takes: {_NUMPY}"
        return Reason.PYTHON_VALUE, _join_reason(text, _READS.get(name))
    if kind.startswith("Dynamic shape operator"):
        name = _operation(translator, reason)
        text = f"the size of what {display_name(name)} gives depends on data"
        return Reason.SIZE, _join_reason(text, _SIZES.get(name))
    for start, why in _TEXTS.items():
        if kind.startswith(start):
            return why
    return Reason.UNTRACEABLE, why_broken(reason)


def _join_reason(text: str, instead: str | None) -> str:
    return text if instead is None else f"{text}: {instead}"


def _operation(translator: Any, reason: str) -> str:
    """The operation that a graph breaks at: the last one recorded, or the one Dynamo names."""
    last = next(iter(reversed(translator.output.graph.nodes)), None)
    name = None if last is None or "example_value" in last.meta else op_name(last)
    found = re.search(r"aten\.(\w+)", reason)
    return name or (found.group(1) if found is not None else "an operation")
