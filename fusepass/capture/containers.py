"""Tuples, lists, dicts and objects that both arms leave, joined item by item.

An object (a dataclass, a model's output, an instance of any class that is built by ``__init__``
alone) has been made twice, once in each arm. The one of the arm traced last goes on, as Dynamo
keeps it: a class and attributes still to be set, which now are the joined ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusepass import torch_private
from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason

if TYPE_CHECKING:
    from fusepass.capture.merge import Outputs, Results


@dataclass(frozen=True)
class PendingContainer:
    """A container to be made once the outputs inside it exist.

    Attributes:
        like: the one the other arm left.
        items: joined items, by position or key.
        attributes: joined attributes, by name.
    """

    like: torch_private.Container
    items: Any
    attributes: dict[str, Any]


def merge_containers(
    taken: Any, other: Any, what: str, outputs: Outputs, merge: Callable[..., Any]
) -> PendingContainer | None:
    """Join two containers of one class, or None when they are not such a pair.

    Args:
        taken: what the arm taken left.
        other: what the other arm left.
        what: what a person calls it.
        outputs: the pairs of tensors to select between; gains those inside.
        merge: joins two tracked values.

    Raises:
        Refusal: the containers differ in their keys, length or attributes, or in which other names
            they go by.
    """
    left = torch_private.container_of(taken, outputs.effects)
    right = torch_private.container_of(other, outputs.effects)
    if left is None or right is None or (left.kind, left.of) != (right.kind, right.of):
        return None
    for key, (partner, joined) in outputs.containers.items():
        if left.kind != "tuple" and (key == id(taken)) != (partner == id(other)):
            raise Refusal(Reason.PYTHON_VALUE, f"{what} is one object with another in one arm only")
        if key == id(taken) and partner == id(other):
            return joined
    _check_structure(left, right, what)
    keyed = isinstance(left.items, dict)
    joined = PendingContainer(right, {} if keyed else [], {})
    outputs.containers[id(taken)] = (id(other), joined)
    if keyed:
        for key, value in right.items.items():
            joined.items[key] = merge(left.items[key], value, f"{what}[…]", outputs)
    elif left.items is not None:
        for n, (x, y) in enumerate(zip(left.items, right.items, strict=True)):
            joined.items.append(merge(x, y, f"{what}[{n}]", outputs))
    for name, value in left.attributes.items():
        place = f"attribute {name!r} of {what}"
        joined.attributes[name] = merge(value, right.attributes[name], place, outputs)
    return joined


def _check_structure(
    left: torch_private.Container, right: torch_private.Container, what: str
) -> None:
    name = left.of.__name__
    if left.items is not None and len(left.items) != len(right.items):
        raise Refusal(
            Reason.PYTHON_VALUE,
            f"{what} is a {name} of {len(left.items)} items in one arm and {len(right.items)} in "
            "the other",
        )
    if isinstance(left.items, dict) and list(left.items) != list(right.items):
        text = f"{what} is a {name} with different keys in the two arms"
        raise Refusal(Reason.PYTHON_VALUE, text)
    if list(left.ways.items()) != list(right.ways.items()):
        text = f"{what} is a {name} with different attributes in the two arms"
        raise Refusal(Reason.PYTHON_VALUE, text)


def settle_container(
    pending: PendingContainer, results: Results, settle: Callable[[Any, Results], Any]
) -> Any:
    """The container, with what :func:`merge_containers` left pending inside it settled."""
    like = pending.like
    if like.kind == "object":
        results.made[id(pending)] = like.value  # it may hold itself
    if isinstance(pending.items, dict):
        items: Any = {key: settle(value, results) for key, value in pending.items.items()}
    else:
        items = [settle(value, results) for value in pending.items]
    if like.kind != "object":
        return torch_private.rebuilt(like, items)
    attributes = {name: settle(value, results) for name, value in pending.attributes.items()}
    return torch_private.fill_object(like, results.effects, items, attributes)
