"""Record the tensor that a branch tests as a 0-d bool tensor, as ``bool(tensor)`` would be.

Python's truth of a one-element tensor is "not equal to zero": NaN and infinities are true,
whatever the dtype and whatever the number of dimensions. Zero or several elements raise in eager,
so they are refused and the ordinary graph break raises the same error.
"""

from __future__ import annotations

from typing import Any

import torch

from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.fx.tensor_kinds import why_not_plain


def as_bool_scalar(translator: Any, tested: Any) -> Any:
    """Record the conversion of a tracked tensor to a 0-d bool; refuse all but one element."""
    why = why_not_plain(tested)
    if why is not None:
        raise Refusal(Reason.PREDICATE, f"the tensor tested {why}")
    fake = tensor_value(tested.as_proxy().node)
    if fake is None or not all(known_equal(size, 1) for size in fake.shape):
        shape = "unknown" if fake is None else tuple(fake.shape)
        raise Refusal(Reason.PREDICATE, f"the tensor tested has shape {shape}, not one element")
    if fake.is_quantized:
        raise Refusal(Reason.PREDICATE, f"a tensor of dtype {fake.dtype} is tested")
    if fake.dtype is not torch.bool:
        tested = stack.wrap_call(translator, "call_function", torch.ne, (tested.as_proxy(), 0), {})
    if fake.dim() > 0:
        tested = stack.wrap_call(translator, "call_method", "reshape", (tested.as_proxy(), ()), {})
    return tested
