"""Join what two arms bind to attributes, buffers and variables that are older than the arms.

Attributes and buffers of older objects (``self.x_min = …``, ``register_buffer``), global variables
and those that functions share are writes that Dynamo keeps pending until the graph has run. Between
the arms they are taken out again, and where the arms meet each is bound once: to the selected
value, or to one that is chosen behind the graph. Where one arm only binds an attribute, the other
choice is to leave it as it is (torch_private/dynamo/open_writes.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from fusepass.capture.branch.container_writes import ContainerWrites, container_writes
from fusepass.capture.branch.merge import merge
from fusepass.capture.branch.one_sided import phi_of
from fusepass.capture.branch.outputs import Outputs
from fusepass.capture.effects.event_legality import why_not_before
from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import globals_written, side_effects, stack
from fusepass.torch_private.dynamo.late_counts import is_late_number
from fusepass.torch_private.dynamo.open_writes import UNCHANGED, bound_value, changes

Place = tuple[int, Any]  # identity of the tracked object, and the attribute's name


@dataclass
class AttributeWrites:
    """What one arm bound, and what was pending before it.

    Attributes:
        effects: Dynamo's pending side effects.
        pending: pending attribute writes before the arm.
        dicts: dictionaries of buffers the arm wrote, and their items before it.
        bound: what the arm bound, by place; the tracked object stands beside the value.
        containers: what it did to lists, dicts, sets and deques.
        before: what was recorded before the arm first changed something; None if it did not.
    """

    effects: Any
    pending: dict[Any, dict[str, Any]] = field(default_factory=dict)
    dicts: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    bound: dict[Place, tuple[Any, Any]] = field(default_factory=dict)
    containers: ContainerWrites = field(default_factory=ContainerWrites)
    before: frozenset[fx.Node] | None = None

    def note(self, graph: fx.Graph) -> None:
        """Note that the arm binds something now."""
        if self.before is None:
            self.before = frozenset(graph.nodes)

    @property
    def outside(self) -> bool:
        """Whether the arm changed something that is older than the frame."""
        bound = (item for item, _ in self.bound.values())
        return self.containers.outside or not all(map(stack.is_own_cell, bound))

    def check(self, nodes: Iterable[fx.Node]) -> None:
        """Refuse an arm whose ``nodes`` may fail after it has bound something outside."""
        if not self.outside:
            return
        why = why_not_before([node for node in nodes if node not in (self.before or ())])
        if why is not None:
            raise Refusal(*why)

    def collect(self) -> None:
        """Note what the arm did, and put everything back to what was pending before it."""
        self.containers.collect()
        restored = {item: dict(writes) for item, writes in self.pending.items()}
        for item, writes in self.effects.store_attr_mutations.items():
            before = self.pending.get(item, {})
            if stack.is_existing_mutation(item):
                changed = {n: value for n, value in writes.items() if before.get(n) is not value}
                self.bound |= {(id(item), n): (item, value) for n, value in changed.items()}
            elif item not in self.pending:
                restored[item] = writes
        self.effects.store_attr_mutations = restored
        for held, items in self.dicts.values():
            now = held.items
            if isinstance(items, frozenset):
                if items != frozenset(now):
                    raise Refusal(Reason.SIDE_EFFECT, "an arm changes which buffers are saved")
                continue
            changed = {key: value for key, value in now.items() if items.get(key) is not value}
            self.bound |= {(id(held), key): (held, value) for key, value in changed.items()}
            side_effects.set_held_items(held, items)

    def older(self, item: Any, name: Any) -> Any:
        """What stood at a place before the arm.

        Raises:
            Refusal: nothing, and it is no attribute that may be left as it is.
        """
        if not isinstance(name, str):
            items = self.dicts[id(item)][1] if id(item) in self.dicts else item.items
            found = items.get(name)
        elif name in self.pending.get(item, {}):
            found = self.pending[item][name]
        elif stack.is_cell(item):
            found = stack.cell_contents(self.effects, item)
        else:
            found = UNCHANGED
        if found is None or bound_value(found) is not found:
            text = f"one arm only binds {told_name(item, name)}, which did not exist before it"
            raise Refusal(Reason.SIDE_EFFECT, text)
        return found


def told_name(item: Any, name: Any) -> str:
    """A place that an arm writes, for a person."""
    if stack.is_cell(item):
        return f"the variable `{item.local_name}`" if item.local_name else "a variable"
    if globals_written.is_global(item):
        return f"the global variable `{name}`"
    return f"attribute {stack.constant_of(name)[1] or name!r}"


@contextlib.contextmanager
def attribute_writes(translator: Any, iterators: Iterable[Any]) -> Iterator[AttributeWrites]:
    """Inside, attributes and buffers of older objects may be bound; :meth:`collect` undoes it.

    Older ``iterators`` may be advanced, because somebody else puts them back.
    """
    advanced = {id(iterator) for iterator in iterators}
    effects = translator.output.side_effects
    writes = AttributeWrites(
        effects, {item: dict(w) for item, w in effects.store_attr_mutations.items()}
    )

    def allowed(item: Any) -> bool:
        if id(item) in advanced:
            return True
        kinds = (side_effects.is_plain_object, side_effects.is_namespace, stack.is_cell)
        if stack.is_existing_mutation(item) and any(kind(item) for kind in kinds):
            writes.note(translator.output.graph)
            return True
        if writes.containers.allowed(item):
            writes.note(translator.output.graph)
            return True
        kind = side_effects.buffer_container(item)
        if kind is None:
            return False
        writes.note(translator.output.graph)
        if id(item) not in writes.dicts:
            items = item.items
            writes.dicts[id(item)] = (item, frozenset(items) if kind == "set" else dict(items))
        return True

    with (
        container_writes(translator) as writes.containers,
        side_effects.side_effects_allowed(effects, allowed) as refused,
    ):
        yield writes
        for text in refused:
            raise Refusal(Reason.SIDE_EFFECT, f"an arm {text}")


def merge_attributes(
    taken: AttributeWrites, other: AttributeWrites, outputs: Outputs
) -> list[tuple[Any, Any, Any]]:
    """Join what the arms bound, as (tracked object, name, merged value)."""
    merged = []
    for place in [*taken.bound, *(p for p in other.bound if p not in taken.bound)]:
        item, name = (taken.bound.get(place) or other.bound[place])[0], place[1]
        told = told_name(item, name)
        left, right = (
            bound_value(writes.bound[place][1]) if place in writes.bound else None
            for writes in (taken, other)
        )
        if left is None or right is None:
            text = f"one arm only binds {told}"
            older = taken.older(item, name)
            left, right = (older if value is None else value for value in (left, right))
            joined = phi_of(left, right, text, outputs)
        elif changes(left) or changes(right):
            joined = phi_of(left, right, f"one arm deletes {told}", outputs)
        elif is_late_number(left) or is_late_number(right):
            joined = phi_of(left, right, f"the arms bind {told} to different numbers", outputs)
        else:
            joined = merge(left, right, told, outputs)
        merged.append((item, name, joined))
    return merged
