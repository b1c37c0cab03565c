"""Loops of a code object: their heads, members and ways out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusepass.capture.bytecode.natural_loops import Loop, find_loops
from fusepass.torch_private.dynamo.code_objects import as_held


def loops(function: Callable[..., Any]) -> tuple[Loop, ...]:
    return find_loops(as_held(function.__code__))


def test_no_loop() -> None:
    def function(x: Any) -> Any:
        return x or x + 1

    assert loops(function) == ()


def test_while_begins_at_its_body() -> None:
    def function(x: Any) -> Any:
        while x > 1:
            x = x / 2
        return x

    (loop,) = loops(function)
    assert not loop.iterates
    assert len(loop.tests) == 1


def test_while_with_continue_is_one_loop() -> None:
    def function(x: Any) -> Any:
        while x > 1 and x < 9:
            x = x / 2
            if x > 3:
                continue
            x = x + 1
        return x

    (loop,) = loops(function)
    assert len({to for _, to in loop.exits}) == 1


def test_while_with_a_statement_before_continue_is_one_loop() -> None:
    def function(x: Any) -> Any:
        while x > 1:
            x = x / 2
            if x > 3:
                x = x - 1
                continue
            x = x + 1
        return x

    (loop,) = loops(function)
    assert len({to for _, to in loop.exits}) == 1


def test_loop_that_is_the_first_statement_of_another_one_stays_apart() -> None:
    def function(x: Any) -> Any:
        while True:
            while True:
                x = x / 2
                if x < 1:
                    break
            x = x + 1
            if x < 3:
                break
        return x

    inner, outer = loops(function)
    assert inner.members < outer.members


def test_for_with_break() -> None:
    def function(x: Any) -> Any:
        for _ in range(9):
            x = x / 2
            if x < 1:
                break
        return x

    (loop,) = loops(function)
    assert loop.iterates
    assert len(loop.tests) == 1
    assert len(loop.exits) == 2


def test_for_in_a_while_stays_a_loop_of_its_own() -> None:
    def function(x: Any) -> Any:
        while x > 1:
            for s in (1, 2):
                x = x - s
        return x

    inner, outer = loops(function)
    assert inner.iterates
    assert not outer.iterates
    assert inner.members < outer.members


def test_nested_while() -> None:
    def function(x: Any) -> Any:
        while True:
            x = x / 2
            if x < 1:
                break
            while x > 3:
                x = x - 1
        return x

    inner, outer = loops(function)
    assert inner.members < outer.members
    assert len(outer.tests) == 1
