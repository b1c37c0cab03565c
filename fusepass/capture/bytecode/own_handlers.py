"""Run the ``__torch_function__`` and ``__torch_dispatch__`` of the program in eager.

What they are given looks like an ordinary tensor there, and is the subclass again behind them.
Dynamo traces them where the call stands. Where that runs in eager it would compile them as frames
of their own, and not ask later whether the call is the same one: with ``y.detach()`` compiled,
``y.shape`` gave a tensor. So they run in eager there, with all that they call.
"""

from __future__ import annotations

import types
from typing import Any

from fusepass.capture.frame_state import new_frame
from fusepass.report import log
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.report.user_code import is_torchs_file
from fusepass.torch_private.dynamo.errors.raising import frames_outwards
from fusepass.torch_private.fx.tensor_kinds import is_wrapper

_HANDLERS = ("__torch_function__", "__torch_dispatch__")


def is_in_subclass(translator: Any) -> bool:
    """Whether what is traced handles a call of torch."""
    codes = (one.f_code for one in frames_outwards(translator))
    return any(code.co_name in _HANDLERS and not is_torchs_file(code.co_filename) for code in codes)


def on_frame(callback: Any, frame: Any) -> bool:
    """Whether a frame that Dynamo is asked to compile runs in eager, with all that it calls.

    Raises:
        FusepassError: the options given to torch.compile are not valid.
    """
    code = frame.f_code
    if is_torchs_file(code.co_filename):
        return False
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    handler = _handled_by(code, first)
    if handler is None and not _is_unfinished(code, first):
        return False
    ours = new_frame(callback)
    if ours is not None and handler is not None:
        text = (
            f"{handler} is called by code in eager mode, and runs in eager mode, too: torch does "
            "not ask which call a compiled one was compiled for"
        )
        why = Outcome.REJECTED, Reason.UNTRACEABLE, text, "keep"
        where = code.co_filename, code.co_firstlineno
        decision = Decision(Station.TRACE, "graph_break", *why, *where)
        log.kept(ours.compiler, decision, ("graph_break", *where, text))
    return ours is not None


def _handled_by(code: types.CodeType, owner: Any) -> str | None:
    """Which function for calls of torch some code is, if it is one."""
    if code.co_name in _HANDLERS:
        return code.co_name
    kinds = getattr(owner if isinstance(owner, type) else type(owner), "__mro__", ())
    for name in _HANDLERS:  # which may be bound to a function of another name
        held = next((vars(kind)[name] for kind in kinds if name in vars(kind)), None)
        if getattr(getattr(held, "__func__", held), "__code__", None) is code:
            return name
    return None


def _is_unfinished(code: types.CodeType, owner: Any) -> bool:
    """Whether code makes a subclass that wraps tensors, which it does not hold yet.

    Before torch 2.13 Dynamo asks for them.
    """
    return code.co_name == "__init__" and is_wrapper(owner)
