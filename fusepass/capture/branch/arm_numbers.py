"""Bring a Python number out of the arm that made it: ``if loss < best: best = loss.item()``.

A number read from a tensor, or computed from such numbers, comes out of its arm as the tensor that
holds it exactly, and is read again behind the join. What is computed from numbers that the frame
was given alone depends on no arm.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.outputs import Outputs, PendingRead
from fusepass.capture.loop.carried import Numbers
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.deferred_items import made_of
from fusepass.capture.scalars.item_hooks import unread_number
from fusepass.capture.scalars.lowering import is_given_float
from fusepass.capture.scalars.scalar import KNOWN_RANGE, Range, kind_of
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason

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
        found = outputs.arms.number(value, arm, Numbers(branch.frame, source.device))
    except Refusal as refusal:
        raise Refusal(refusal.code, f"{told}: {refusal.text}") from None
    if found is None:
        text = f"{told}, and no tensor holds the number that it is in an arm"
        raise Refusal(Reason.PYTHON_VALUE, text)
    tensor, known = found
    slot = outputs.add_one_sided(tensor, arm)
    kind = kind_of(node)
    assert kind is not None
    return PendingRead(slot, known, kind, branch.frame.items[read[0]])


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


def read_exported(translator: Any, frame: Any, tensor: Any, number: PendingRead) -> Any:
    """Read a number that came out of its arm as a tensor, which is zero if that was not taken."""
    read = unread_number(translator, frame, tensor.as_proxy(), number.place, number.kind)
    if number.kind == "int":
        source: Any = read.as_proxy().node.args[0]
        least, most = min(number.known.least, 0), max(number.known.most, 0)
        source.meta[KNOWN_RANGE] = Range(least, most)
    return read
