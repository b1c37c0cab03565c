"""Merge the values of two arms, name by name and item by item.

Tensors that differ become outputs of the branch; equal constants and untouched values go through;
containers built in the arms are joined item by item. Any other two values become a *phi*: a value
that is one of two, by the predicate (one_sided.py).

An object (a dataclass, a model's output, an instance of any class that is built by ``__init__``
alone) has been made twice, once in each arm. The one of the arm traced last goes on, as Dynamo
keeps it: a class and attributes still to be set, which now are the joined ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fusepass.capture.branch.arm_numbers import number_of_two
from fusepass.capture.branch.known_outcomes import resolved
from fusepass.capture.branch.one_sided import phi_of, truth_of_two
from fusepass.capture.branch.outputs import Outputs, PendingContainer, PendingPhi
from fusepass.capture.branch.tensor_pairs import difference
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.arm_scalars import is_choice
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import containers as torch_containers
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.containers import Container, container_items, kind_of
from fusepass.torch_private.dynamo.errors.wording import with_article
from fusepass.torch_private.dynamo.phi import is_phi
from fusepass.torch_private.fx.tensor_kinds import own_rules_of, why_not_plain


def merge_locals(
    taken: dict[str, Any],
    other: dict[str, Any],
    live: frozenset[str] | set[str],
    before: dict[str, Any],
    outputs: Outputs,
    *,
    needed: Callable[[str], bool] = lambda _: False,
) -> dict[str, Any]:
    """Join two sets of locals; names nobody reads any more and that differ are dropped.

    A name that is read must be bound in both arms. ``needed`` says whether Python needs the number
    under a name: it is then no node for tensor work.
    """
    merged: dict[str, Any] = {}
    for name in [*taken, *(n for n in other if n not in taken)]:
        a, b = taken.get(name), other.get(name)
        if a is b:
            merged[name] = a
        elif name in live:
            if a is None or b is None:
                raise Refusal(
                    Reason.UNBOUND, f"{name!r} is bound in one arm only and read afterwards"
                )
            nodes = outputs.number_nodes
            known = (stack.constant_of(stack.realized(one)) for one in (a, b))
            if nodes and all(held and _is_number(one) for held, one in known):
                outputs.number_nodes = not needed(name)
            merged[name] = merge(a, b, repr(name), outputs)
            outputs.number_nodes = nodes
        elif name in before and before[name] is a:
            merged[name] = a
    return merged


def merge(taken: Any, other: Any, what: str, outputs: Outputs) -> Any:
    """Join two tracked values, into a pending one where they differ, or refuse them."""
    if taken is other:
        return taken
    taken, other = stack.realized(taken), stack.realized(other)
    if is_phi(taken) or is_phi(other):
        taken = resolved(taken, outputs.arms.known(True))
        other = resolved(other, outputs.arms.known(False))
    if taken is other:
        return taken
    joined: Any = truth_of_two(taken, other, what, outputs)
    if joined is not None:
        return joined
    if stack.is_any_tensor(taken) and stack.is_any_tensor(other):
        same = outputs.common(taken, other)
        if same is not None and own_rules_of(taken) == own_rules_of(other):
            return same
        why = why_not_plain(taken) or why_not_plain(other)
        if why is not None:
            raise Refusal(Reason.PYTHON_VALUE, f"{what} {why} in an arm")
        differs = _differing_tensors(taken, other)
        if differs is not None:
            return phi_of(taken, other, f"{what} differs: {differs}", outputs)
        return outputs.add(taken, other)
    constant, value = stack.constant_of(taken)
    other_constant, other_value = stack.constant_of(other)
    if constant and other_constant:
        if _same_constant(value, other_value):
            return taken
        if outputs.number_nodes and _is_number(value) and _is_number(other_value):
            return outputs.add_number(value, other_value)
        text = f"{what} is {value!r} in one arm and {other_value!r} in the other"
        return phi_of(taken, other, text, outputs)
    if stack.same_symbol(taken, other):
        return taken
    if (number := number_of_two(taken, other, outputs)) is not None:
        return number
    left = _number_or_tensor(taken, constant, value)
    right = _number_or_tensor(other, other_constant, other_value)
    if outputs.number_nodes and left is not None and right is not None:
        return outputs.add_number(left, right)
    joined = merge_containers(taken, other, what, outputs)
    if joined is not None:
        return joined
    if type(taken) is type(other) and _same_source(taken, other):
        return taken
    one, two = _noun(taken), _noun(other)
    if one == two:
        text = f"{what} is another {one} in each arm, and one of them is older than the arms"
        if container_items(taken) is None:
            text = f"{what} is another {one} in each arm"
        return phi_of(taken, other, text, outputs)
    text = f"{what} is {_describe(taken)} in one arm and {_describe(other)} in the other"
    return phi_of(taken, other, text, outputs)


def _differing_tensors(taken: Any, other: Any) -> str | None:
    """Why no select can choose between two tensors, as they are known now, or None."""
    a, b = (tensor_value(one.as_proxy().node) for one in (taken, other))
    differs = None if a is None or b is None else difference(a, b)
    return None if differs is None else differs.text


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _number_or_tensor(tracked: Any, constant: bool, value: Any) -> Any:
    """A Python number itself, the proxy of a tensor or of another such number, or None."""
    if constant:
        return value if _is_number(value) else None
    node = stack.number_node(tracked)
    if stack.is_plain_tensor(tracked) or (node is not None and is_choice(node)):
        return tracked.as_proxy()
    return None


def _same_constant(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (
            a == b and math.copysign(1.0, a) == math.copysign(1.0, b)
        )
    if isinstance(a, (tuple, frozenset, slice)):
        return repr(a) == repr(b)
    return bool(a == b)


def _same_source(a: Any, b: Any) -> bool:
    source = getattr(a, "source", None)
    if source is not None:
        return bool(source == getattr(b, "source", None))
    return type(a).__name__ == "NullVariable"


def _describe(value: Any) -> str:
    constant, python = stack.constant_of(value)
    return repr(python) if constant else with_article(_noun(value))


def _noun(value: Any) -> str:
    if stack.is_any_tensor(value):
        return "tensor"
    held = container_items(value)
    if held is not None:
        return str(getattr(held[0], "__self__", held[0]).__name__)
    return kind_of(value)


def merge_containers(
    taken: Any, other: Any, what: str, outputs: Outputs
) -> PendingContainer | PendingPhi | None:
    """Join two containers of one class, or None when they are not such a pair.

    They must have the same keys, length and attributes, and go by the same names.
    """
    left = torch_containers.container_of(taken, outputs.effects)
    right = torch_containers.container_of(other, outputs.effects)
    if left is None or right is None or (left.kind, left.of) != (right.kind, right.of):
        return None
    for key, (partner, joined) in outputs.containers.items():
        if left.kind != "tuple" and (key == id(taken)) != (partner == id(other)):
            raise Refusal(Reason.PYTHON_VALUE, f"{what} is one object with another in one arm only")
        if key == id(taken) and partner == id(other):
            return joined
    differs = _difference(left, right, what)
    if differs is not None:
        return phi_of(taken, other, differs, outputs)
    joined = PendingContainer(right, {}, {})
    outputs.containers[id(taken)] = (id(other), joined)
    keyed = isinstance(left.items, dict)
    for key, value in right.items.items() if keyed else enumerate(right.items or ()):
        place = f"{what}[{'…' if keyed else key}]"
        joined.items[key] = merge(left.items[key], value, place, outputs)
    for name, value in left.attributes.items():
        place = f"attribute {name!r} of {what}"
        joined.attributes[name] = merge(value, right.attributes[name], place, outputs)
    return joined


def _difference(left: Container, right: Container, what: str) -> str | None:
    """Why two containers of one class cannot be joined item by item, or None."""
    name = left.of.__name__
    if left.items is not None and len(left.items) != len(right.items):
        items = f"{len(left.items)} items in one arm and {len(right.items)} in the other"
        return f"{what} is a {name} of {items}"
    if isinstance(left.items, dict) and list(left.items) != list(right.items):
        return f"{what} is a {name} with different keys in the two arms"
    if list(left.ways.items()) != list(right.ways.items()):
        return f"{what} is a {name} with different attributes in the two arms"
    return None
