"""Bring what only one arm leaves out of it: the parts of a value that is one of two.

``h = None; if p: h = f(x)``: code behind the join looks at the tensor only if the arm was taken. It
comes out through the select like any result, next to a stand-in from the other arm,
so that the treatment and the gates are those of any result. What is older than the arm goes through
as the object that it is.
"""

from __future__ import annotations

from typing import Any

from fusepass.capture.branch.arm_numbers import exported_number
from fusepass.capture.branch.known_outcomes import tested_now
from fusepass.capture.branch.outputs import Outputs, PendingContainer, PendingPhi
from fusepass.capture.branch.phi_truth import may_be_truth
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.object_identity import differs, restart_knowing
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import containers as torch_containers
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.errors.wording import with_article
from fusepass.torch_private.dynamo.phi import PhiVariable, is_phi, nodes_in
from fusepass.torch_private.fx.tensor_kinds import why_not_plain


def phi_of(taken: Any, other: Any, told: str, outputs: Outputs) -> PendingPhi:
    """The value that is ``taken`` after one arm and ``other`` after the other.

    Raises:
        Refusal: what an arm left cannot be known outside of it.
    """
    key = id(taken), id(other)
    if key not in outputs.phis:
        outputs.held_by += [taken, other]
        parts = _exported(taken, True, told, outputs), _exported(other, False, told, outputs)
        outputs.phis[key] = PendingPhi(None, *parts, told)
    return outputs.phis[key]


def truth_of_two(taken: Any, other: Any, what: str, outputs: Outputs) -> PendingPhi | None:
    """The truth value that two others become, of which one is that of a tensor; else None."""
    if not (is_phi(taken) or is_phi(other)) or not all(map(may_be_truth, (taken, other))):
        return None
    key = id(taken), id(other)
    if key not in outputs.phis:
        outputs.held_by += [taken, other]
        tested = outputs.add(outputs.arms.truth(taken, True), outputs.arms.truth(other, False))
        sides = stack.constant(True), stack.constant(False)
        told = f"{what} is true or false, as the arms leave it"
        outputs.phis[key] = PendingPhi(tested, *sides, told)
    return outputs.phis[key]


def _exported(value: Any, arm: bool, told: str, outputs: Outputs) -> Any:
    """A value that an arm left, as it is known behind the join."""
    if stack.is_unused(value):  # it is older, and no guard is to depend on it
        return value
    value = stack.realized(value)
    if stack.constant_of(value)[0]:
        return value
    if stack.is_any_tensor(value):
        return _tensor(value, arm, told, outputs)
    key = id(value), arm
    if key not in outputs.exported:
        outputs.held_by.append(value)
        outputs.exported[key] = _parts(value, arm, told, outputs)
    return outputs.exported[key]


def _tensor(value: Any, arm: bool, told: str, outputs: Outputs) -> Any:
    node = outputs.settled(value.as_proxy().node)
    if not outputs.is_made(node):
        return value if node is value.as_proxy().node else stack.with_node(value, node)
    why = why_not_plain(value)
    if why is not None:
        raise Refusal(Reason.PYTHON_VALUE, f"{told}, and a tensor of an arm {why}")
    return outputs.add_one_sided(value, arm)


def _parts(value: Any, arm: bool, told: str, outputs: Outputs) -> Any:
    if is_phi(value):
        return _inner(value, arm, told, outputs)
    number = stack.number_node(value)
    if number is not None and outputs.is_made(number):
        return exported_number(value, arm, told, outputs)
    held = torch_containers.container_of(value, outputs.effects)
    if held is not None:
        made = PendingContainer(held, {}, {})
        outputs.exported[id(value), arm] = made  # it may hold itself
        keyed = isinstance(held.items, dict)
        for key, item in held.items.items() if keyed else enumerate(held.items or ()):
            made.items[key] = _exported(item, arm, told, outputs)
        for name, item in held.attributes.items():
            made.attributes[name] = _exported(item, arm, told, outputs)
        return made
    if differs(outputs.arms.branch.frame, value):
        restart_knowing(outputs.arms.branch.frame, [value], "it is beside another value")
    new = stack.is_new_object(value) and not stack.is_function(value)
    if new or any(map(outputs.is_made, nodes_in(value, outputs.effects))):
        kind = with_article(torch_containers.kind_of(value))
        text = f"{told}, and {kind} that an arm makes of its own values cannot leave it"
        raise Refusal(Reason.PYTHON_VALUE, text)
    return value


def _inner(phi: PhiVariable, arm: bool, told: str, outputs: Outputs) -> Any:
    """A value that a branch inside the arm, or in front of it, left."""
    tested = predicate = tested_now(outputs.arms.branch.frame, phi)
    if outputs.is_made(tested.as_proxy().node):
        predicate = outputs.add_one_sided(tested, arm)
    taken = _exported(phi.taken, arm, told, outputs)
    other = _exported(phi.other, arm, told, outputs)
    if predicate is tested and taken is phi.taken and other is phi.other:
        return phi
    return PendingPhi(predicate, taken, other, phi.told)
