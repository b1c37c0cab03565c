"""Join what two arms bind to attributes and buffers of older objects.

Attributes and buffers of older objects (``self.x_min = …``, ``register_buffer``) are writes that
Dynamo keeps pending until the graph has run. Between the arms they are taken out again, and where
the arms meet each attribute is bound once, to the selected value. An attribute that only one arm
binds stays a graph break: where eager takes the other arm, the older object itself stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fusepass.capture.branch.merge import merge
from fusepass.capture.branch.outputs import Outputs
from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import side_effects, stack

Place = tuple[int, Any]  # identity of the tracked object, and the attribute's name


@dataclass
class AttributeWrites:
    """What one arm bound, and what was pending before it.

    Attributes:
        effects: Dynamo's pending side effects.
        pending: pending attribute writes before the arm.
        dicts: dictionaries of buffers the arm wrote, and their items before it.
        bound: what the arm bound, by place; the tracked object stands beside the value.
    """

    effects: Any
    pending: dict[Any, dict[str, Any]] = field(default_factory=dict)
    dicts: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    bound: dict[Place, tuple[Any, Any]] = field(default_factory=dict)

    def collect(self) -> None:
        """Note what the arm bound, and put everything back to what was pending before it."""
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
        if stack.is_existing_mutation(item) and side_effects.is_plain_object(item):
            return True
        kind = side_effects.buffer_container(item)
        if kind is None:
            return False
        if id(item) not in writes.dicts:
            items = item.items
            writes.dicts[id(item)] = (item, frozenset(items) if kind == "set" else dict(items))
        return True

    with side_effects.side_effects_allowed(effects, allowed):
        yield writes


def merge_attributes(
    taken: AttributeWrites, other: AttributeWrites, outputs: Outputs
) -> list[tuple[Any, Any, Any]]:
    """Join what the arms bound, as (tracked object, name, merged value).

    An attribute that only one arm binds is refused.
    """
    merged = []
    for place in [*taken.bound, *(p for p in other.bound if p not in taken.bound)]:
        name = stack.constant_of(place[1])[1] or place[1]
        if place not in taken.bound or place not in other.bound:
            text = f"one arm only writes an attribute that existed before it ({name})"
            raise Refusal(Reason.SIDE_EFFECT, text)
        item, value = taken.bound[place]
        joined = merge(value, other.bound[place][1], f"attribute {name!r}", outputs)
        merged.append((item, place[1], joined))
    return merged
