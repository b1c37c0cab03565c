"""Graph breaks that are Dynamo's own: each gets a decision, with a cause and what to write instead.

What programs meet often has a code and advice here. The rest is said in the words of
torch_private/dynamo/errors/stop_reasons.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fusepass.capture.frame_state import Frame
from fusepass.graph.ops.op_names import display_name, op_name
from fusepass.report import log
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.report.user_code import is_torchs_file, is_users_file
from fusepass.torch_private.dynamo.errors.error_text import said
from fusepass.torch_private.dynamo.errors.stop_reasons import why_broken

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
    "Data-dependent branching": (
        Reason.PREDICATE,
        "a branch tests a tensor or NumPy array here",
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
    "Compiling up to": "the rest of the function runs in eager mode",
    "Skipping the function": "the function runs in eager mode",
}


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
    own = [place for place in places if is_users_file(place[0])]
    own = own or [place for place in places if not is_torchs_file(place[0])] or [*places]
    code, text = _why(translator, reason)
    gives_up = next((how for mark, how in _GIVES_UP.items() if mark in reason), None)
    text = text if gives_up is None else f"{text}; {gives_up}"
    decision = Decision(
        Station.TRACE, "graph_break", Outcome.REJECTED, code, text, "keep", *own[-1]
    )
    log.kept(frame.compiler, decision, ("graph_break", *own[-1], text))


def _why(translator: Any, reason: str) -> _Why:
    kind = said(reason).kind
    if kind == "Data dependent operator":
        name = _operation(translator, reason)
        text = f"{display_name(name)} reads a number from a tensor"
        return Reason.PYTHON_VALUE, _joined(text, _READS, name)
    if kind.startswith("Dynamic shape operator"):
        name = _operation(translator, reason)
        text = f"the size of what {display_name(name)} gives depends on data"
        return Reason.SIZE, _joined(text, _SIZES, name)
    for start, why in _TEXTS.items():
        if kind.startswith(start):
            return why
    return Reason.UNTRACEABLE, why_broken(reason)


def _joined(text: str, instead: dict[str, str], name: str) -> str:
    return f"{text}: {instead[name]}" if name in instead else text


def _operation(translator: Any, reason: str) -> str:
    """The operation that a graph breaks at: the last one recorded, or the one Dynamo names."""
    last = next(iter(reversed(translator.output.graph.nodes)), None)
    name = None if last is None or "example_value" in last.meta else op_name(last)
    found = re.search(r"aten\.(\w+)", reason)
    return name or (found.group(1) if found is not None else "an operation")
