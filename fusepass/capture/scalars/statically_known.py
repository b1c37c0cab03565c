"""Answer ``statically_known_true(n == 3)`` and its relatives for a captured number as eager does.

In eager mode the number is there, and the answer is the number's own. So it is here, for a number
that is not read; where the answer is not known, the number is read.
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
from fusepass.torch_private.dynamo.calls import constant, traced_operator
from fusepass.torch_private.dynamo.scalars.statically_known import (
    ALL_OF,
    ALWAYS,
    ANY_OF,
    NEGATED,
    NEVER,
    SAME,
    answer_of,
)
from fusepass.torch_private.dynamo.stack import constant_of, number_node, realized

_JOINED = {ALL_OF: operator.and_, ANY_OF: operator.or_}
_ASIDE = ("optimization_hint",)  # what comes with the number is for one that is not known


def answered(
    translator: Any,
    frame: Frame,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
    call: Callable[[], Any],
) -> Any:
    """What such a function says, tracked."""
    given = [realized(value) for value in (*args, *kwargs.values())]
    unknown = [value for value in given if needs_value.left_unknown(frame, value)]
    if not unknown:
        return _of_known(name, given, call)
    asked = given[:1] if name in _ASIDE else given
    answers = {answer_of(name, _kind(value)) for value in asked}
    answer = answers.pop() if len(answers) == 1 else None
    if answer in _JOINED:
        return functools.reduce(
            lambda a, b: traced_operator(translator, _JOINED[answer], [a, b]), asked
        )
    if len(asked) == 1 and answer == SAME:
        return asked[0]
    if len(asked) == 1 and answer == NEGATED:
        negated = on_not(translator, asked[0])
        return traced_operator(translator, operator.not_, asked) if negated is None else negated
    if len(asked) == 1 and answer in (ALWAYS, NEVER):
        return constant(answer == ALWAYS)
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
