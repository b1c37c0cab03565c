"""Calls in place that leave what they compute in another dtype than the plain operation has.

``t.eq_(y)`` keeps the dtype of ``t`` where ``t == y`` is a truth value, ``t.mul_(y)`` of an int32
wraps where the product with an int64 does not, a sum of bfloat16 and float32 is rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.arguments import SymbolicSize
from fusepass.graph.ops.normal_call import NormalCall
from fusepass.graph.ops.op_names import tensor_value


def out_of_place_dtype(node: fx.Node, call: NormalCall) -> torch.dtype | None:
    """The dtype of the plain operation of a call in place, if it is not what the call leaves."""
    left = tensor_value(node)
    plain = _plain_dtype(call)
    return plain if left is not None and plain is not None and plain != left.dtype else None


def _plain_dtype(call: NormalCall) -> torch.dtype | None:
    """Found on stand-ins of one element: which dtypes and numbers of dimensions there are decides.

    Where these cannot be computed with, by the rules of promotion alone.
    """
    given = {name: _one_element_sample(value) for name, value in call.args}
    try:
        made = getattr(torch.ops.aten, call.op)(**given)
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return _promoted(list(given.values()))
    return made.dtype if isinstance(made, torch.Tensor) else None


def _one_element_sample(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_one_element_sample, value))
    tensor = tensor_value(value)
    if tensor is not None:
        return torch.empty((1,) * tensor.dim(), dtype=tensor.dtype, device="meta")
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value", value.meta.get("val"))
    value = value.size if isinstance(value, SymbolicSize) else value
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return 1 if isinstance(value, torch.SymInt) else 1.0
    return value


def _promoted(values: list[Any]) -> torch.dtype | None:
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not tensors:
        return None
    # Sums of their own, so that numbers of dimensions count as they do among the operands.
    total = tensors[0]
    for other in tensors[1:]:
        shape = (1,) * max(total.dim(), other.dim())
        total = torch.empty(shape, dtype=torch.result_type(total, other), device="meta")
    return total.dtype
