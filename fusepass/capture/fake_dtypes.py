"""End the graph at calls whose fake result has another dtype than eager's.

``torch.normal`` of half and single precision gives halves in eager, and the fake tensors that a
trace computes with are promoted. Run op by op the numbers are right; but what the program asks of
the dtype is answered while it is traced. So the call is left to Dynamo as a graph break. Where the
graph may not break, a warning says what is wrong.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from fusepass.capture.frame_state import any_frame_of
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import keep
from fusepass.capture.source_position import here
from fusepass.errors import DtypeOfTrace
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report import warn_once
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.error_hooks import break_or_skip

_WHAT = "torch.compile assumes another dtype for a result than eager mode gives it"
_HINTS = ["Give both tensors the same dtype: `torch.normal(mean, deviation.to(mean.dtype))`."]


def on_recorded(translator: Any, node: fx.Node) -> None:
    """Called with each call that Dynamo has recorded; breaks the graph where its dtype is wrong.

    Raises:
        Refusal: the call is in an arm of a branch, which then is kept.
    """
    if op_name(node) != "normal" or len(node.args) < 2:
        return
    frame = any_frame_of(translator.output)
    made, mean = tensor_value(node), tensor_value(node.args[0])
    if frame is None or made is None or mean is None or made.dtype is mean.dtype:
        return
    text = (
        f"torch.normal gives {_short(mean.dtype)} here, the dtype of the mean, where torch.compile "
        f"assumes {_short(made.dtype)}"
    )
    if frame.arms:
        raise Refusal(Reason.DTYPE_MISMATCH, text)
    place = here(translator, "dtype_of_normal")
    if translator.one_graph or translator.error_on_graph_break:
        warn_once.warn(DtypeOfTrace(f"{place.file}:{place.line}", text), stacklevel=2)
        return
    told = f"{text} (pytorch #194547): the graph ends here"
    keep(frame, place, Reason.INDUCTOR_FAULT, told)
    break_or_skip(translator, _WHAT, f"{text}.", _HINTS)


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
