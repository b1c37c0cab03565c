"""Values that are one of two may hold one another in very many ways: each is visited once."""

from __future__ import annotations

from typing import Any

from fusepass.torch_private.dynamo.open_writes import UNCHANGED, is_open, with_older
from fusepass.torch_private.dynamo.phi import PhiVariable, leaves_of
from fusepass.torch_private.dynamo.stack import constant


def swapped(first: Any, second: Any, times: int) -> Any:
    """What ``if p: a, b = b, a`` makes of two values, time after time."""
    predicate = constant(True)
    for _ in range(times):
        parts = (first, second), (second, first)
        first, second = (PhiVariable(predicate, predicate, *two, 0, "it") for two in parts)
    return first


def test_leaves() -> None:
    one, two = constant(1), constant(2)
    assert [id(leaf) for leaf in leaves_of(swapped(one, two, 100))] == [id(one), id(two)]
    assert [*leaves_of(one)] == [one]


def test_with_what_stays_as_it_is_known() -> None:
    one, older = constant(1), constant(2)
    value = swapped(one, UNCHANGED, 100)
    assert is_open(value)
    known = with_older(value, older, "it")
    assert not is_open(known)
    assert {id(leaf) for leaf in leaves_of(known)} == {id(one), id(older)}
