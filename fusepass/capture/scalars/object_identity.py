"""Answer ``is`` and ``in`` for numbers that are not read yet.

Whether a truth value is True it says itself; ``n in numbers`` is whether it equals one of them, or
is the same object. Which object any other number is can only be told when it is known.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.scalars.item_hooks import on_not
from fusepass.capture.scalars.needs_value import differs, is_unknown, kinds, restart_knowing
from fusepass.torch_private.dynamo.deferred_values import late_parts
from fusepass.torch_private.dynamo.identity import (
    IdentityHandlers,
    decided,
    equal,
    may_be_number,
    other_number,
    parts_of,
)
from fusepass.torch_private.dynamo.stack import (
    break_graph,
    constant,
    constant_of,
    is_any_tensor,
    number_node,
    realized,
    traced_operator,
)

_IS = "Python asks which object it is"
_KIND = "Python asks for its type"
_IN = "Python looks for it in a container, or for something in one with it"
_NO_NUMBERS = (type(None), str, bytes)  # equal to no number


def on_same(translator: Any, left: Any, right: Any, negated: bool) -> Any:
    """The result of ``left is right``, or None where Dynamo knows it."""
    frame = frame_of(translator.output)
    if frame is None:
        return None
    if left is right:
        return constant(not negated) if is_unknown(frame, left) else None
    for value, other in ((left, right), (right, left)):
        if is_unknown(frame, value):
            return _compared(translator, frame, value, realized(other), negated)
    for value, other in ((left, right), (right, left)):
        if _is_small(other) and _is(value, torch.SymInt):
            same = _equal(translator, frame, value, other)
            return constant(constant_of(same)[1] is not negated)
        if number_node(value) is not None and not may_be_number(other):
            return constant(negated)
        if late_parts(value) is not None and not _is_none(other):
            break_graph("Value that is computed after the graph", _IS)
    return None


def _compared(translator: Any, frame: Frame, value: Any, other: Any, negated: bool) -> Any:
    constant, python = constant_of(other)
    if constant and isinstance(python, bool) and _is(value, torch.SymBool):
        truth = value if python is not negated else on_not(translator, value)
        if truth is not None:
            return truth
    tensors = all(map(is_any_tensor, (value, other)))
    if tensors or may_be_number(other) or is_unknown(frame, other):
        restart_knowing(frame, [value, other], _IS)
    return constant(negated)  # they are of different types


def on_equal(translator: Any, left: Any, right: Any) -> list[Any]:
    """The operands that ``left == right`` is to compare: an enum member as its number.

    To Dynamo such a member is an object, which equals no number that varies or is not known.
    """
    if frame_of(translator.output) is None:
        return [left, right]
    sides = [left, right]
    for place, value in enumerate(sides):
        if number_node(sides[1 - place]) is not None:
            number = other_number(value)
            sides[place] = value if number is None else constant(number)
    return sides


def _may_hold_unknown(frame: Frame) -> bool:
    """Whether anything in the frame may be a number that is not known; tells most apart at once."""
    left = any(site.leaves_numbers for site in frame.sites)
    return bool(frame.items or frame.selections or left)


def on_kind(translator: Any, value: Any) -> None:
    """``type(value)`` or ``isinstance(value, …)`` of what is of another type in either arm."""
    frame = frame_of(translator.output)
    if frame is not None and differs(frame, value) and len(kinds(value)) > 1:
        restart_knowing(frame, [value], _KIND)


def _is_none(value: Any) -> bool:
    return constant_of(realized(value)) == (True, None)


def _is_small(value: Any) -> bool:
    """Whether it is an integer of which Python has but one object.

    So has a size that equals it, or an integer that varies, for which Dynamo does not look.
    """
    constant, python = constant_of(value)
    return constant and type(python) is int and -5 <= python <= 256


def on_contains(translator: Any, items: list[Any], searched: Any) -> Any:
    """The result of ``searched in items``, or None where Dynamo knows it."""
    frame = frame_of(translator.output)
    if frame is None:
        return None
    values = [searched, *items]
    parts = _all_parts(values) if _may_hold_unknown(frame) else []
    if any(late_parts(part) is not None for part in parts):
        break_graph("Value that is computed after the graph", _IN)
    unknown = [v for v in parts if is_unknown(frame, v)]
    symbolic = any(number_node(v) is not None for v in values)
    if not unknown and not symbolic:
        return None
    values = [realized(value) for value in values]
    numbers = [other_number(value) for value in values]
    pairs = zip(values, numbers, strict=True)
    values = [v if number is None else constant(number) for v, number in pairs]
    searched, *items = values
    plain = all(map(_is_plain, values)) and not any(differs(frame, v) for v in unknown)
    if not plain and unknown:
        restart_knowing(frame, unknown, _IN)
    return _is_one_of(translator, frame, items, searched) if plain else None


def _is_one_of(translator: Any, frame: Frame, items: list[Any], searched: Any) -> Any:
    found = None
    for item in items:
        same = _equal(translator, frame, item, searched)
        constant, python = constant_of(same)
        if constant and python:
            return same
        if not constant:
            found = (
                same if found is None else traced_operator(translator, operator.or_, [found, same])
            )
    return constant(False) if found is None else found


def _is(value: Any, kind: type) -> bool:
    """Whether a tracked value is a symbol of a kind."""
    node = number_node(value)
    return node is not None and isinstance(node.meta.get("example_value"), kind)


def _all_parts(values: list[Any]) -> list[Any]:
    """Tracked values and what the containers among them hold, however deep."""
    found: dict[int, Any] = {}
    todo = list(values)
    while todo:
        value = todo.pop()
        if id(value) not in found:
            found[id(value)] = value
            todo += parts_of(value)
    return list(found.values())


def _is_plain(value: Any) -> bool:
    """Whether Python compares a value with a number by its own rules for numbers."""
    constant, python = constant_of(value)
    if constant:
        return type(python) in (bool, int, float, *_NO_NUMBERS)
    return number_node(value) is not None


def _equal(translator: Any, frame: Frame, item: Any, searched: Any) -> Any:
    """Whether a value is, or equals, the one searched for."""
    nodes = [number_node(value) for value in (item, searched)]
    if nodes[0] is nodes[1] is not None:
        return constant(True)  # NaN, too
    known, values = zip(*map(constant_of, (item, searched)), strict=True)
    if all(known):
        return constant(values[0] is values[1] or values[0] == values[1])
    if any(k and isinstance(v, _NO_NUMBERS) for k, v in zip(known, values, strict=True)):
        return constant(False)
    same = equal(translator, item, searched)
    symbolic = number_node(same) is not None
    return decided(same) if symbolic and not is_unknown(frame, same) else same


IDENTITY = IdentityHandlers(on_same, on_equal, on_kind, on_contains)
