"""Carry a tuple item by item: ``state = cell(x, state)``, ``s = body(s)``.

Its items are tensors, numbers, other tuples, or constants that stay what they are. Each tensor or
number is carried under a name of its own, ``s.0`` or ``s.1.0``; no variable has such a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fusepass.capture.loop.late_values import same_constant
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.number_tensors import number_kind
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.helpers_in_code import tracked_tuple, tuple_items


def is_carried_tuple(value: Any) -> bool:
    """Whether a tracked value is a plain tuple that can be carried item by item."""
    items = tuple_items(value)
    if not items:
        return False
    for item in map(stack.realized, items):
        known = stack.is_any_tensor(item) or stack.constant_of(item)[0]
        if not (known or number_kind(item) is not None or is_carried_tuple(item)):
            return False
    return any(True for _ in named_items("", value))


def named_items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors and numbers of a tuple, each with the name that it is carried by."""
    for position, item in enumerate(map(stack.realized, tuple_items(value) or ())):
        own = f"{name}.{position}"
        if tuple_items(item) is not None:
            yield from named_items(own, item)
        elif stack.is_any_tensor(item) or number_kind(item) is not None:
            yield own, item


def rebuilt(name: str, like: Any, item_of: Callable[[str], Any]) -> Any:
    """A tuple like another one, of items by their names."""
    items = []
    for position, item in enumerate(map(stack.realized, tuple_items(like) or ())):
        own = f"{name}.{position}"
        if tuple_items(item) is not None:
            items.append(rebuilt(own, item, item_of))
        elif stack.is_any_tensor(item) or number_kind(item) is not None:
            items.append(item_of(own))
        else:
            items.append(item)
    return tracked_tuple(items)


def left_items(name: str, like: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """The items of a tuple that a round leaves, by the names of those it began as.

    Raises:
        Refusal: it is another kind of tuple.
    """
    before, after = tuple_items(like), tuple_items(stack.realized(value))
    if before is None or after is None or len(before) != len(after):
        raise Refusal(Reason.PYTHON_VALUE, f"{name!r} is another kind of tuple after a round")
    pairs = zip(map(stack.realized, before), map(stack.realized, after), strict=True)
    for position, (first, last) in enumerate(pairs):
        own = f"{name}.{position}"
        if tuple_items(first) is not None:
            yield from left_items(own, first, last)
        elif stack.is_any_tensor(first) or number_kind(first) is not None:
            yield own, last
        elif not same_constant(first, last):
            text = f"item {own!r} is neither a tensor nor a number, and changes"
            raise Refusal(Reason.PYTHON_VALUE, text)
