"""Bring a Python number out of the arm that made it: ``if loss < best: best = loss.item()``.

A number read from a tensor, or computed from such numbers, comes out of its arm as the tensor that
holds it exactly, and is read again behind the join:

    n = 0                              n = item(where(p, count(x), 0))
    if p: n = count(x).item()

Like any number that is read from a tensor it stays on the device where only tensors use it. What is
computed from numbers that the frame was given alone depends on no arm.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.outputs import Outputs, PendingNumber
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import is_kept
from fusepass.capture.scalars.deferred_items import made_of
from fusepass.capture.scalars.lowering import is_given_float
from fusepass.capture.scalars.number_tensors import number_kind
from fusepass.capture.scalars.scalar import DTYPES, Range, kind_of
from fusepass.capture.scalars.scalar_predicate import is_of_unknown_numbers
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack

# What Python computes of any numbers without failing.
_TOTAL = {
    *(operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, abs),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.and_, operator.or_, operator.not_),
    *(torch.sym_float, torch.sym_max, torch.sym_min, torch.sym_not),
}
_DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)


def exported_number(value: Any, arm: bool, told: str, outputs: Outputs) -> Any:
    """A number that an arm made, as it is known behind the join.

    Raises:
        Refusal: no tensor holds it exactly.
    """
    branch, node = outputs.arms.branch, value.as_proxy().node
    read = [one for one in made_of([node]) if one in branch.frame.items]
    if not read:
        if not _leave_arms(node, outputs):
            text = f"{told}, and computing it may fail, so it must not be done in both arms"
            raise Refusal(Reason.PYTHON_VALUE, text)
        return value
    source = tensor_value(read[0].args[0])
    assert source is not None
    try:
        found = outputs.arms.number(value, arm, source.device)
    except Refusal as refusal:
        raise Refusal(refusal.code, f"{told}: {refusal.text}") from None
    if found is None:
        text = f"{told}, and no tensor holds the number that it is in an arm"
        raise Refusal(Reason.PYTHON_VALUE, text)
    tensor, known = found
    slot = outputs.add_one_sided(tensor, arm)
    kind = kind_of(node)
    assert kind is not None
    limits = Range(min(known.least, 0), max(known.most, 0))  # it is zero if the arm was not taken
    return PendingNumber(slot, branch.frame.items[read[0]], kind, limits if kind == "int" else None)


def _leave_arms(node: fx.Node, outputs: Outputs) -> bool:
    """Move a number that is computed from others outside the graph to where the branch stands."""
    made = reached([node], lambda one: filter(outputs.is_made, one.all_input_nodes))
    if not all(_is_given(one) or _is_total(one) for one in made):
        return False
    outputs.arms.leave(made)
    return True


def _is_total(node: fx.Node) -> bool:
    if node.target in _DIVISIONS:
        return isinstance(node.args[1], (int, float)) and node.args[1] != 0
    return node.target in _TOTAL


def _is_given(node: fx.Node) -> bool:
    """Whether a node is a number that the frame is given."""
    return node.op == "placeholder" or is_given_float(node)


def number_of_two(taken: Any, other: Any, outputs: Outputs) -> PendingNumber | None:
    """The number that two others become; None if neither was read in an arm, or kinds differ.

    Raises:
        Refusal: one of them has no exact form on tensors.
    """
    values, branch = (taken, other), outputs.arms.branch
    nodes = [node for node in map(stack.number_node, values) if node is not None]
    if not any(map(outputs.is_made, nodes)):
        return None
    items = made_of(nodes)
    places = [branch.frame.items[node] for node in items if node in branch.frame.items]
    # Places first: they are known at once, and the kind of a long chain of numbers is not.
    if not places or not all(map(is_of_unknown_numbers, nodes)):
        return None
    kinds = {number_kind(value) for value in values}
    sources = [tensor_value(node.all_input_nodes[0]) for node in items]
    tested = tensor_value(branch.predicate.as_proxy().node)
    devices = {value.device for value in (*sources, tested) if value is not None}
    if len(kinds) > 1 or None in kinds or len(devices) > 1:
        return None
    (kind,), (device,) = kinds, devices
    place = dataclasses.replace(places[0], dtype=DTYPES[str(kind)])
    if is_kept(branch.frame, place):
        return None
    (one, first), (two, second) = (
        outputs.arms.number(value, arm, device)
        for value, arm in zip(values, (True, False), strict=True)
    )
    known = Range(min(first.least, second.least), max(first.most, second.most))
    slot = outputs.add(one, two)
    return PendingNumber(slot, place, str(kind), known if kind == "int" else None)
