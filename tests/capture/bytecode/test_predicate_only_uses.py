"""Whether a value is only tested: read off the bytecode of plain functions, which are never run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor
from torch._dynamo.bytecode_transformation import cleaned_instructions

from fusepass.capture.bytecode.predicate_only_uses import has_only_predicate_uses

from ..support.side_by_side import side_by_side, signed
from .uses_of_numbers import ARITHMETIC, NO, YES, asserted_message, read


def pushes(function: Callable[..., Any], nth: int = 0) -> tuple[list[Any], int]:
    """The instructions of a function, and the index of its nth call of ``read``."""
    instructions = list(cleaned_instructions(function.__code__))
    reads = [i for i, inst in enumerate(instructions) if inst.argval == "read"]
    for index in range(reads[nth], len(instructions)):
        if instructions[index].opname == "CALL":
            return instructions, index
    raise AssertionError("read is not called")


def answer(function: Callable[..., Any], nth: int = 0, **options: Any) -> bool:
    return has_only_predicate_uses(*pushes(function, nth), **options)


@pytest.mark.parametrize("function", YES, ids=lambda function: function.__name__)
def test_values_used_only_as_predicates(function: Callable[..., Any]) -> None:
    assert answer(function)
    assert answer(function, arithmetic=False)


@pytest.mark.parametrize("function", ARITHMETIC, ids=lambda function: function.__name__)
def test_arithmetic_if_that_is_allowed(function: Callable[..., Any]) -> None:
    assert answer(function)
    assert not answer(function, arithmetic=False)


@pytest.mark.parametrize("function", NO, ids=lambda function: function.__name__)
def test_used_by_something_else(function: Callable[..., Any]) -> None:
    assert not answer(function)


def test_loads_that_do_not_matter() -> None:
    """A message of an exception may name the number: it is made only where that is raised."""
    instructions, at = pushes(asserted_message)
    line = {}
    for position, inst in enumerate(instructions):
        line[position] = inst.positions.lineno if inst.positions else None
    raised = max(l for i, l in line.items() if l and "RAISE" in instructions[i].opname)
    assert has_only_predicate_uses(instructions, at, ignored=lambda i: line[i] == raised)
    assert not has_only_predicate_uses(instructions, at, ignored=lambda i: line[i] == raised - 1)


def test_two_numbers_of_one_comparison() -> None:
    def program(x: Any) -> Any:
        if read() > 1 < read():
            return 1
        return 2

    assert answer(program, 1)


def test_a_value_far_from_its_test_is_not_followed() -> None:
    """The walk is bounded; what it does not reach it does not know."""
    source = "def far(x):\n    if read() > x" + ".a" * 200 + ":\n        return 1\n    return 2\n"
    space: dict[str, Any] = {}
    exec(source, space)
    assert not answer(space["far"])
    exec(source.replace(".a" * 200, ".a"), space)
    assert answer(space["far"])


def test_a_value_of_which_only_the_truth_may_be_asked() -> None:
    def compared(x: Any) -> Any:
        found = read()
        return x if found > 1 else -x

    def asked(x: Any) -> Any:
        found = read()
        return x if not found or x > 1 else -x

    assert answer(compared)
    assert answer(asked)
    assert not answer(compared, compared=False)
    assert answer(asked, compared=False)


def test_a_predicate_compared_with_none() -> None:
    """Dynamo leaves the places of constants out of instructions: no fault, and no warning."""

    def program(x: Tensor) -> Tensor:
        b = bool((x.sum() > 0) and x[0] < 2)
        if b is None:
            return x
        if b is not None and b:
            return x * 2
        return x - 1

    side_by_side(program, *signed(1.0, 2.0, 3.0, 4.0))
