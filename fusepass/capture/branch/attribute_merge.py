"""Join attributes and buffers that both arms bind: ``self.x_min = …``, ``register_buffer``.

Dynamo keeps such writes pending until the graph has run. Between the arms they are taken out again,
and where the arms meet each attribute is bound once, to the selected value. An attribute that one
arm only binds stays a graph break: not taken, eager leaves the very object that was there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.side_effects import (
    buffer_container,
    is_plain_object,
    set_held_items,
    side_effects_allowed,
)
from fusepass.torch_private.dynamo.stack import constant_of, is_existing_mutation

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
        """Note what the arm bound and put everything back to what was pending before it.

        Raises:
            Refusal: the arm changed which buffers are saved.
        """
        for item, writes in self.effects.store_attr_mutations.items():
            if not is_existing_mutation(item):
                continue
            before = self.pending.get(item, {})
            for name, value in writes.items():
                if before.get(name) is not value:
                    self.bound[id(item), name] = (item, value)
        made = {
            item: writes
            for item, writes in self.effects.store_attr_mutations.items()
            if item not in self.pending and not is_existing_mutation(item)
        }
        self.effects.store_attr_mutations = {
            **{item: dict(writes) for item, writes in self.pending.items()},
            **made,
        }
        for held, items in self.dicts.values():
            now = held.items
            if isinstance(items, frozenset):
                if items != frozenset(now):
                    raise Refusal(Reason.SIDE_EFFECT, "an arm changes which buffers are saved")
                continue
            for key, value in now.items():
                if items.get(key) is not value:
                    self.bound[id(held), key] = (held, value)
            set_held_items(held, items)


@contextlib.contextmanager
def attribute_writes(translator: Any, iterators: Iterable[Any]) -> Iterator[AttributeWrites]:
    """Inside, attributes and buffers of older objects may be bound; :meth:`collect` undoes it.

    Args:
        translator: Dynamo's translator.
        iterators: older ones that may be advanced, because somebody else puts them back.
    """
    advanced = {id(iterator) for iterator in iterators}
    effects = translator.output.side_effects
    writes = AttributeWrites(
        effects, {item: dict(w) for item, w in effects.store_attr_mutations.items()}
    )

    def allowed(item: Any) -> bool:
        if id(item) in advanced:
            return True
        if is_existing_mutation(item) and is_plain_object(item):
            return True
        kind = buffer_container(item)
        if kind is None:
            return False
        if id(item) not in writes.dicts:
            items = item.items
            writes.dicts[id(item)] = (item, frozenset(items) if kind == "set" else dict(items))
        return True

    with side_effects_allowed(effects, allowed):
        yield writes


def merge_attributes(
    taken: AttributeWrites, other: AttributeWrites, merge: Callable[[Any, Any, str], Any]
) -> list[tuple[Any, Any, Any]]:
    """Attributes to bind at the join, as (tracked object, name, merged value).

    Args:
        taken: what the arm taken bound.
        other: what the other arm bound.
        merge: joins two tracked values, given what they are called.

    Raises:
        Refusal: an attribute is bound in one arm only, or its values cannot be joined.
    """
    merged = []
    for place in [*taken.bound, *(p for p in other.bound if p not in taken.bound)]:
        name = constant_of(place[1])[1] or place[1]
        if place not in taken.bound or place not in other.bound:
            text = f"one arm only writes an attribute that existed before it ({name})"
            raise Refusal(Reason.SIDE_EFFECT, text)
        item, value = taken.bound[place]
        merged.append((item, place[1], merge(value, other.bound[place][1], f"attribute {name!r}")))
    return merged
