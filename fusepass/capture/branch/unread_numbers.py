"""Join Python numbers that arms read from tensors, and that nobody has read yet.

    n = 0                              n = item(where(p, count(x), 0))
    if p: n = count(x).item()

Each arm puts its number into a 0-d tensor, a select chooses, and the number is read from the
result. Like any number that is read from a tensor it stays on the device where only tensors use it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from fusepass.capture.branch.outputs import Outputs, PendingNumber
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import is_kept
from fusepass.capture.scalars.deferred_items import made_of
from fusepass.capture.scalars.item_hooks import unread_number
from fusepass.capture.scalars.scalar import DTYPES, KNOWN_RANGE, Range, exactly, kind_of
from fusepass.capture.scalars.scalar_predicate import is_of_unknown_numbers, number_as_tensor
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack

_KINDS = {bool: "bool", int: "int", float: "float"}


def number_of_two(taken: Any, other: Any, outputs: Outputs) -> PendingNumber | None:
    """The number that two others become; None if neither was read in an arm, or kinds differ.

    Raises:
        Refusal: one of them has no exact form on tensors.
    """
    nodes = [stack.number_node(value) for value in (taken, other)]
    if not any(node is not None and outputs.is_made(node) for node in nodes):
        return None
    frame = outputs.arms.branch.frame
    items = made_of([node for node in nodes if node is not None])
    places = [frame.items[node] for node in items if node in frame.items]
    if not places:  # seen at once, where the kind of a long chain of numbers is not
        return None
    kinds = {_kind(value) for value in (taken, other)}
    sources = [tensor_value(node.all_input_nodes[0]) for node in items]
    tested = tensor_value(outputs.arms.branch.predicate.as_proxy().node)
    devices = {value.device for value in (*sources, tested) if value is not None}
    if len(kinds) > 1 or None in kinds or len(devices) > 1:
        return None
    kind = str(kinds.pop())
    place = dataclasses.replace(places[0], dtype=DTYPES[kind])
    if is_kept(frame, place):
        return None
    (device,) = devices
    held = [_held(value, arm, device, outputs) for value, arm in ((taken, True), (other, False))]
    (one, first), (two, second) = held
    range_ = Range(min(first.least, second.least), max(first.most, second.most))
    return PendingNumber(outputs.add(one, two), place, range_ if kind == "int" else None)


def read_number(translator: Any, frame: Any, tensor: Any, pending: PendingNumber) -> Any:
    """The number in a tensor that a select gives."""
    number = unread_number(translator, frame, tensor.as_proxy(), pending.place)
    if pending.range is not None:
        source: Any = stack.number_node(number).args[0]  # type: ignore[union-attr]
        source.meta[KNOWN_RANGE] = pending.range
    return number


def _kind(value: Any) -> str | None:
    constant, known = stack.constant_of(value)
    if constant:
        return _KINDS.get(type(known))
    node = stack.number_node(value)
    return None if node is None or not is_of_unknown_numbers(node) else kind_of(node)


def _held(value: Any, arm: bool, device: torch.device, outputs: Outputs) -> tuple[Any, Range]:
    """A number as a tensor of its arm, and what it can be."""
    translator = outputs.arms.branch.translator
    constant, known = stack.constant_of(value)
    with outputs.arms.inside(arm):
        if not constant:
            return number_as_tensor(translator, stack.number_node(value), device)  # type: ignore[arg-type]
        if type(known) is int and not -(2**63) <= known < 2**63:
            raise Refusal(Reason.OVERFLOW, "an integer does not fit 64 bits")
        given = {"dtype": DTYPES[_KINDS[type(known)]], "device": device}
        made = stack.wrap_call(translator, "call_function", torch.full, ((), known), given)
    return made, exactly(known)
