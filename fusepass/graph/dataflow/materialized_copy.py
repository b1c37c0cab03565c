"""Copies that are still there when the compiled code runs.

What a graph hands out is often a copy, because the memory itself is written later on. Inductor
takes a ``clone`` for nothing to do and hands out what was cloned; when it later lets a write to a
part of that memory happen in place, it does not look at what is handed out, which then shows the
write. It knows ``copy_``, ``cat``, ``repeat``, ``pow`` and several more as copies, too, and sums
with 0 and products with 1 change -0.0 or have no form for some dtypes.

Turning a tensor around along no axis is none of these: a copy of any dtype, bit for bit, with the
strides that a ``clone`` would have, and in the generated code it is nothing but a load and a store.
A tensor without axes gets one for it, or torch would make a ``clone`` of the call.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value


class RecordCall(Protocol):
    """Records a call behind a node."""

    def __call__(self, place: fx.Node, target: Any, /, *args: Any) -> fx.Node: ...  # noqa: D102


def materialized_copy(node: fx.Node, record: RecordCall) -> fx.Node:
    """Record a copy of a tensor that may be handed out whatever is written later.

    Args:
        node: the tensor.
        record: called with the node behind which a call may stand, its function and its arguments.
    """
    value = tensor_value(node)
    if value is not None and value.dim():
        return record(node, torch.flip, node, ())
    row = record(node, torch.reshape, node, (1,))
    copy = record(row, torch.flip, row, ())
    return record(copy, torch.reshape, copy, ())
