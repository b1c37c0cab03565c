"""Join what two arms do to lists, dicts, sets and deques that are older than the arms.

Between the arms a container is put back to what it held. Where the arms meet, one of the same
length and keys is joined item by item. What any other holds is not known until the graph has
run: its changes are kept in program order, each chosen behind the graph
(torch_private/dynamo/open_containers.py).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fusepass.capture.branch.merge import merge
from fusepass.capture.branch.one_sided import phi_of
from fusepass.capture.branch.outputs import Outputs, Results, settle
from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import open_containers as containers
from fusepass.torch_private.dynamo.open_containers import Contents, updates_between
from fusepass.torch_private.dynamo.open_writes import UNCHANGED
from fusepass.torch_private.patches import Patches, Theirs


@dataclass
class ContainerWrites:
    """What one arm did to older containers.

    Attributes:
        effects: Dynamo's pending side effects.
        before: what containers held before the arm.
        after: what those hold that the arm changed, by the identity of the container.
    """

    effects: Any = None
    before: dict[int, Contents] = field(default_factory=dict)
    after: dict[int, Contents] = field(default_factory=dict)

    def add(self, container: Any) -> None:
        """Note what a container holds before the arm changes it."""
        for one in (container, containers.held_by(container)):
            if one is not None and containers.kind_of_container(one) is not None:
                self.before.setdefault(id(one), Contents.of(one))

    def allowed(self, container: Any) -> bool:
        """Whether the arm may change a tracked value because it is such a container."""
        known = id(container) in self.before and containers.is_older(container)
        return known and containers.is_applied(self.effects, container)

    @property
    def outside(self) -> bool:
        """Whether the arm changed one that is older than the frame."""
        return any(containers.is_outside(one.container) for one in self.after.values())

    def collect(self) -> None:
        """Note what the arm changed, and put it back."""
        for key, before in self.before.items():
            now = Contents.of(before.container)
            if before.differs(now):
                now.added = updates_between(before, now)
                self.after[key] = now
            before.restore()


@contextlib.contextmanager
def container_writes(translator: Any) -> Iterator[ContainerWrites]:
    """Inside, older containers may be changed; :meth:`ContainerWrites.collect` undoes it."""
    effects = translator.output.side_effects
    writes = ContainerWrites(effects)
    for container in containers.containers_held(translator):
        writes.add(container)

    def tracked(theirs: Theirs, item: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        made = theirs(item, variable, *args, **kwargs)
        writes.add(made)
        return made

    with Patches() as patches:
        for name in ("track_mutable", "track_object_existing"):
            theirs = getattr(effects, name)
            patches.set(effects, name, functools.partial(tracked, theirs))
        try:
            yield writes
        except BaseException:
            writes.collect()
            raise


def merge_contents(
    translator: Any, taken: ContainerWrites, other: ContainerWrites, outputs: Outputs
) -> list[Callable[[Results], None]]:
    """Join what the arms did to containers; what is returned is called with the results."""
    changed = {**taken.after, **other.after}
    return [
        _merge(translator, taken.after.get(key), other.after.get(key), held.container, outputs)
        for key, held in changed.items()
    ]


def _merge(
    translator: Any,
    taken: Contents | None,
    other: Contents | None,
    container: Any,
    outputs: Outputs,
) -> Callable[[Results], None]:
    before = Contents.of(container)
    name = containers.told_container(container)
    sides = taken or before, other or before
    if _alike(*sides):
        items = _items(before, *sides, name, outputs)
        return lambda results: containers.set_items(
            translator, container, {key: settle(value, results) for key, value in items.items()}
        )
    if containers.is_iterated(translator, container):
        raise Refusal(Reason.SIDE_EFFECT, f"an arm changes {name}, which is iterated over")
    text = f"one arm changes {name}"
    updates = [
        (how, phi_of(value if arm else UNCHANGED, UNCHANGED if arm else value, text, outputs))
        for side, arm in ((taken, True), (other, False))
        if side is not None
        for how, value in side.added
    ]
    return lambda results: containers.add_updates(
        translator, container, [(how, settle(value, results)) for how, value in updates]
    )


def _alike(taken: Contents, other: Contents) -> bool:
    """Whether a container is joined item by item."""
    if taken.open or other.open:  # a branch inside an arm may have left changes that wait
        return False
    if isinstance(taken.items, dict):
        keyed = containers.kind_of_container(taken.container) != "SetVariable"
        return keyed and list(taken.items) == list(other.items)
    return len(taken.items) == len(other.items)


def _items(
    before: Contents, taken: Contents, other: Contents, name: str, outputs: Outputs
) -> dict[Any, Any]:
    """The joined items that the arms changed, by key or position."""
    keyed = isinstance(before.items, dict)
    old, new, rest = (
        side.items if keyed else dict(enumerate(side.items)) for side in (before, taken, other)
    )
    joined = {}
    for key, value in new.items():
        told = f"an item of {name}"
        if value is rest[key]:
            if value is not old.get(key):
                joined[key] = value
        elif any(old.get(key) is one for one in (value, rest[key])):  # the older object stays
            joined[key] = phi_of(value, rest[key], f"one arm only changes {told}", outputs)
        else:
            joined[key] = merge(value, rest[key], told, outputs)
    if keyed or len(new) == len(old):
        return joined
    return {key: joined.get(key, value) for key, value in new.items()}
