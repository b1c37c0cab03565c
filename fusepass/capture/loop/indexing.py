"""Index a tensor, in a round of a loop, by a number that changes or by a 0-d tensor.

Python reads a number from such a key. In a captured loop the key stays the 0-d tensor it is, which
torch takes for the number when the graph runs; only what it gives has to be known while tracing.
Inductor gets the key as a tensor of one element (patterns/loop_to_while.py).
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from fusepass.capture.frame_state import frame_of
from fusepass.capture.nodes.loop_node import KEYED
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.scalar import kind_of
from fusepass.capture.scalars.scalar_predicate import is_of_unknown_numbers, number_as_tensor
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.helpers_in_code import key_parts


def on_subscript(translator: Any, instruction: Any) -> bool:
    """Record ``x[key]`` or ``x[key] = value`` if Python would read ``key``; say whether it did."""
    frame = frame_of(translator.output)
    if frame is None or not frame.rounds or len(translator.stack) < 2:
        return False
    reads = instruction.opname == "BINARY_SUBSCR"
    container, key = map(stack.realized, translator.stack[-2:])
    if not stack.is_plain_tensor(container):
        return False
    held = tensor_value(container.as_proxy().node)
    parts = key_parts(key)
    if held is None or parts is None:
        return False
    made = [_part(translator, part, held.device) for part in parts]
    if not any(made):
        return False
    taken, zeros = [], []
    for part, (original, value) in zip(made, parts, strict=True):
        taken.append(part.as_proxy() if part is not None else value)
        zeros.append(0 if part is not None else value)
        if part is None and original is not None:
            text = "a tensor is indexed by a number that changes and by another tensor"
            raise Refusal(Reason.SIZE, text)
    with translator.fake_mode:
        fake = held[tuple(zeros)]
    proxy = container.as_proxy()
    if reads:
        node = translator.output.create_proxy(
            "call_function", operator.getitem, (proxy, tuple(taken)), {}
        )
        node.node.meta[KEYED] = True
        del translator.stack[-2:]
        translator.push(stack.wrap_tensor(translator, node, fake))
        return True
    _store(translator, proxy, tuple(taken), fake)
    return True


def _store(translator: Any, proxy: Any, key: tuple[Any, ...], fake: torch.Tensor) -> None:
    value = stack.realized(translator.stack[-3])
    if stack.is_plain_tensor(value):
        held = tensor_value(value.as_proxy().node)
        assert held is not None
        with translator.fake_mode:
            torch.broadcast_to(held, fake.shape)
        stored = value.as_proxy()
    else:
        constant, stored = stack.constant_of(value)
        if not constant or type(stored) not in (bool, int, float):
            raise Refusal(Reason.PYTHON_VALUE, "a value is stored that is no tensor")
    made = translator.output.create_proxy(
        "call_function", operator.setitem, (proxy, key, stored), {}
    )
    made.node.meta |= {KEYED: True, "example_value": None}
    del translator.stack[-3:]


def _part(translator: Any, part: tuple[Any, Any], device: torch.device) -> Any:
    """A part of a key as a tracked 0-d tensor, if Python would read a number from it."""
    value, _ = part
    if value is None:
        return None
    node = stack.number_node(value)
    if node is not None:
        if kind_of(node) == "int" and is_of_unknown_numbers(node):
            return number_as_tensor(translator, node, device)[0]
        return None
    held = tensor_value(value.as_proxy().node) if stack.is_plain_tensor(value) else None
    whole = held is not None and held.dim() == 0 and held.dtype in (torch.int64, torch.int32)
    return value if whole and held is not None and held.device == device else None
