"""Collect what two arms leave, and make it once the outputs of their branch exist.

Merging leaves *pending* values, because the select that they come out of can only be recorded when
all of them are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from fusepass.capture.frame_state import Place
from fusepass.capture.scalars.scalar import Range
from fusepass.torch_private.dynamo import containers as torch_containers
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.containers import Container


@dataclass(frozen=True)
class Pending:
    """Stands for a value in one list of the results until it exists."""

    of: str
    position: int


@dataclass(frozen=True)
class PendingNumber:
    """A number that arms made, to be read from a tensor that comes out of them.

    Attributes:
        tensor: pending.
        place: where the program reads it, or the first number that it is computed from.
        kind: ``bool``, ``int`` or ``float``.
        known: what an integer can be, else None.
    """

    tensor: Pending
    place: Place
    kind: str
    known: Range | None


@dataclass(frozen=True)
class PendingContainer:
    """A container to be made once the outputs inside it exist.

    Attributes:
        like: the one the other arm left.
        items: joined items, by position or key.
        attributes: joined attributes, by name.
    """

    like: Container
    items: Any
    attributes: dict[str, Any]


@dataclass(frozen=True)
class PendingPhi:
    """A value that is one of two, to be made once these exist.

    Attributes:
        predicate: of an inner branch, pending; None for the branch that is joined.
        taken, other: what the arms left.
        told: what it is, for a person.
    """

    predicate: Any
    taken: Any
    other: Any
    told: str


@dataclass
class Outputs:
    """The pairs of tensors to select between, collected while merging.

    Attributes:
        pairs: ``(value the taken arm left, value the other arm left)`` as proxies.
        numbers: the same where one or both are Python numbers.
        containers: containers joined so far, by the one the taken arm left.
        settled: the older tensor that a node of an arm is (the result of an in-place call).
        effects: Dynamo's pending side effects, where objects of the arms have their attributes.
        number_nodes: whether a number that differs may become a node, for tensor work.
        is_made: whether a node was recorded in one of the arms.
        arms: records further nodes in the arms.
        one_sided: by the position of a pair that code looks at only if one arm was taken, that arm.
        phis: values that are one of two, by what the arms left.
        exported: values that one arm left, as they are known behind the join.
        held_by: keeps alive what is known by its identity.
    """

    pairs: list[tuple[fx.Proxy, fx.Proxy]] = field(default_factory=list)
    numbers: list[tuple[Any, Any]] = field(default_factory=list)
    containers: dict[int, tuple[int, PendingContainer]] = field(default_factory=dict)
    settled: Callable[[fx.Node], fx.Node] = lambda node: node
    effects: Any = None
    number_nodes: bool = True
    is_made: Callable[[fx.Node], bool] = lambda _: False
    arms: Any = None
    one_sided: dict[int, bool] = field(default_factory=dict)
    phis: dict[tuple[int, int], PendingPhi] = field(default_factory=dict)
    exported: dict[tuple[int, bool], Any] = field(default_factory=dict)
    held_by: list[Any] = field(default_factory=list)

    def add(self, taken: Any, other: Any) -> Pending:
        """Slot for this pair; a pair already there is reused, so aliases stay one tensor."""
        pair = taken.as_proxy(), other.as_proxy()
        for position, (a, b) in enumerate(self.pairs):
            if a.node is pair[0].node and b.node is pair[1].node:
                return Pending("tensors", position)
        self.pairs.append(pair)
        return Pending("tensors", len(self.pairs) - 1)

    def add_one_sided(self, value: Any, arm: bool) -> Pending:
        """Slot for a tensor that one arm made, and that is looked at only if it was taken."""
        proxy = value.as_proxy()
        for position, side in self.one_sided.items():
            if side is arm and self.pairs[position][not arm].node is proxy.node:
                return Pending("tensors", position)
        pair = proxy, self.arms.stand_in(proxy.node, not arm)
        self.pairs.append(pair if arm else pair[::-1])
        self.one_sided[len(self.pairs) - 1] = arm
        return Pending("tensors", len(self.pairs) - 1)

    def add_number(self, taken: Any, other: Any) -> Pending:
        """Slot for values of which one or both are Python numbers."""
        self.numbers.append((taken, other))
        return Pending("numbers", len(self.numbers) - 1)

    def common(self, taken: Any, other: Any) -> Any:
        """The one tensor that two tracked values are, or None when they are two."""
        nodes = [value.as_proxy().node for value in (taken, other)]
        older = [self.settled(node) for node in nodes]
        if older[0] is not older[1]:
            return None
        for value, node in zip((taken, other), nodes, strict=True):
            if node is older[0]:
                return value
        return stack.with_node(taken, older[0])


@dataclass(frozen=True)
class Results:
    """What pending slots are replaced by.

    Attributes:
        tensors: the outputs of the branch, in order.
        numbers: the numbers that differ, in order.
        effects: Dynamo's pending side effects.
        phi: makes a value that is one of two, of a predicate or None, these and what to say of it.
        number: reads a number from a tensor, with the facts of the pending one.
        made: containers rebuilt so far: one pending container gives one object.
    """

    tensors: list[Any]
    numbers: list[Any]
    effects: Any
    phi: Callable[..., Any]
    number: Callable[..., Any]
    made: dict[int, Any] = field(default_factory=dict)


def settle(value: Any, results: Results) -> Any:
    """Replace what merging left pending by what now exists."""
    if isinstance(value, Pending):
        return getattr(results, value.of)[value.position]
    if not isinstance(value, (PendingContainer, PendingNumber, PendingPhi)):
        return value
    made = results.made
    if id(value) not in made:
        if isinstance(value, PendingNumber):
            tensor = settle(value.tensor, results)
            made[id(value)] = results.number(tensor, value.place, value.kind, value.known)
        elif isinstance(value, PendingPhi):
            parts = (settle(one, results) for one in (value.predicate, value.taken, value.other))
            made[id(value)] = results.phi(*parts, value.told)
        else:
            made[id(value)] = _container(value, results)
    return made[id(value)]


def _container(value: PendingContainer, results: Results) -> Any:
    like = value.like
    if like.kind == "object":
        results.made[id(value)] = like.value  # it may hold itself
    items: Any
    items, attributes = (
        {key: settle(part, results) for key, part in held.items()}
        for held in (value.items, value.attributes)
    )
    if not isinstance(like.items, dict):
        items = list(items.values())
    if like.kind == "object":
        return torch_containers.fill_object(like, results.effects, items, attributes)
    return torch_containers.rebuilt(like, items)
