"""Answer ``statically_known_true(n == 3)`` and its relatives for a captured number as eager does.

Such a function asks nothing when the program runs: of a number in Python it is ``n == 3``. Dynamo
answers while it traces, so of a number that nobody has read, wrongly. Where the answer of eager is
not known, the number is read.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from fusepass.capture.frame_state import Frame
from fusepass.capture.scalars import needs_value
from fusepass.capture.scalars.item_hooks import on_not
from fusepass.capture.scalars.scalar import kind_of
from fusepass.torch_private.dynamo.stack import (
    constant,
    constant_of,
    number_node,
    realized,
    traced_operator,
)

_NUMBER = "bool int float"
# What a function says, and of which kinds of numbers: the number itself, a constant, the negation,
# or all or any of its arguments. It raises for other kinds, or what it says of them is not known.
_ANSWERS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(
        """
        expect_true guard_bool guard_or_false guard_or_true guard_size_oblivious
        statically_known_true definitely_true
        """.split(),
        (operator.pos, "bool"),
    ),
    "statically_known_false": (operator.not_, "bool"),
    "definitely_false": (operator.not_, "bool"),
    "guard_float": (operator.pos, "float"),
    "guard_int": (operator.pos, "int"),
    "guard_scalar": (operator.pos, _NUMBER),
    "guarding_hint_or_throw": (operator.pos, "bool int"),
    "hint_int": (operator.pos, "int"),
    "optimization_hint": (operator.pos, "int"),
    "has_guarding_hint": (True, _NUMBER),
    "has_hint": (True, _NUMBER),
    "has_static_value": (True, _NUMBER),
    "is_concrete_bool": (True, "bool"),
    "is_concrete_float": (True, "float"),
    "is_concrete_int": (True, "bool int"),
    "has_free_symbols": (False, _NUMBER),
    "has_free_unbacked_symbols": (False, _NUMBER),
    "is_nested_int": (False, _NUMBER),
    "is_symbolic": (False, _NUMBER),
    "sym_and": (operator.and_, "bool"),
    "sym_or": (operator.or_, "bool"),
}
_ASIDE = ("optimization_hint",)  # what comes with the number is for one that is not known


def answered(
    translator: Any,
    frame: Frame,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
    call: Callable[[], Any],
) -> Any:
    """The tracked answer of such a function."""
    given = [realized(value) for value in (*args, *kwargs.values())]
    unknown = [value for value in given if needs_value.left_unknown(frame, value)]
    if not unknown:
        return _of_known(name, given, call)
    asked = given[:1] if name in _ASIDE else given
    answer, kinds = _ANSWERS.get(name, (None, ""))
    known = answer is not None and all(_kind(value) in kinds.split() for value in asked)
    if known and answer in (operator.and_, operator.or_):
        return functools.reduce(lambda a, b: traced_operator(translator, answer, [a, b]), asked)
    if known and len(asked) == 1:
        if answer is operator.pos:
            return asked[0]
        if answer is operator.not_:
            negated = on_not(translator, asked[0])
            return traced_operator(translator, answer, asked) if negated is None else negated
        return constant(answer)
    return needs_value.restart_knowing(frame, unknown, f"{name} asks for what is known of it")


def _of_known(name: str, given: list[Any], call: Callable[[], Any]) -> Any:
    """The negation of a known truth value: Dynamo's ``statically_known_false`` forgets it."""
    if name == "statically_known_false" and len(given) == 1:
        known, value = constant_of(given[0])
        if known and isinstance(value, bool):
            return constant(not value)
    return call()


def _kind(value: Any) -> str | None:
    node = number_node(value)
    return kind_of(constant_of(value)[1] if node is None else node)
