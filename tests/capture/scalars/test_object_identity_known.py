"""What torch knows of a number, asked in the program, is what it is in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental import symbolic_shapes as shapes

from ..support.side_by_side import side_by_side

CALLS = [(torch.tensor([1.0, 2.0]),), (torch.tensor([1.0, -2.0]),), (torch.tensor([3.0, 0.0]),)]
OF_TRUTHS = [
    name
    for name in (
        *("statically_known_true", "statically_known_false", "guard_or_false", "guard_or_true"),
        *("guard_size_oblivious", "guard_scalar", "guarding_hint_or_throw", "has_static_value"),
        *("guard_bool", "expect_true", "is_concrete_bool", "has_free_unbacked_symbols"),
    )
    if hasattr(shapes, name)
]
OF_NUMBERS = [
    name
    for name in (
        *("guard_scalar", "guarding_hint_or_throw", "optimization_hint", "hint_int"),
        *("has_static_value", "is_concrete_int", "guard_int", "has_hint", "has_guarding_hint"),
        *("has_free_unbacked_symbols", "is_nested_int"),
    )
    if hasattr(shapes, name)
]
PLACES: dict[str, Callable[[Tensor, Any], Any]] = {
    "returned": lambda x, answer: (x + 1, answer),
    "tested": lambda x, answer: x + 1 if answer else x - 1,
    "printed": lambda x, answer: (print(answer), x)[1],  # noqa: T201
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", OF_TRUTHS)
def test_a_condition_on_a_number_that_is_not_read(name: str, place: str) -> None:
    ask, use = getattr(shapes, name), PLACES[place]

    def program(x: Tensor) -> Any:
        n = x.sum().int().item()
        return use(x, ask(n == 3))

    side_by_side(program, *CALLS, warned="ignore")  # torch warns of guard_size_oblivious in eager


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_number_that_is_not_read(name: str) -> None:
    ask = getattr(shapes, name)

    def program(x: Tensor) -> Any:
        n = x.sum().int().item()
        torch._check(n < 4)
        return ask(n), x * n

    side_by_side(program, *CALLS)


def after_a_check(x: Tensor) -> Tensor:
    n = x.sum().int().item()
    torch._check(n == 3)
    if shapes.statically_known_true(n == 3) and shapes.has_static_value(n):
        return x + 1
    return x - 1


def behind_a_branch(x: Tensor) -> Tensor:
    n = x.sum().int().item()
    if x.max() > 2:
        x = x * 2
    return x + 1 if shapes.guard_or_false(n == 3) else x - 1


def in_an_arm(x: Tensor) -> Tensor:
    n = x.sum().int().item()
    if x.max() > 1.5:
        return x + (1 if shapes.guard_or_true(n == 3) else 2)
    return x * (3 if shapes.statically_known_false(n == 3) else 4)


def in_a_message(x: Tensor) -> Tensor:
    n = x.sum().int().item()
    if n == 3:
        raise ValueError(f"{shapes.has_static_value(n)} {shapes.statically_known_true(n == 3)}")
    return x


def of_a_float(x: Tensor) -> Any:
    s = x.sum().item()
    return shapes.guard_or_false(s > 2), shapes.has_static_value(s), x * s


def joined(x: Tensor) -> Any:
    n, m = x.sum().int().item(), x.max().int().item()
    return (
        shapes.sym_and(n == 3, m == 2),
        shapes.guard_or_false(shapes.sym_or(n == 5, m > 2)),
        torch.sym_not(n == 3),
    )


def by_keyword(x: Tensor) -> Any:
    n = x.sum().int().item()
    return shapes.statically_known_true(x=n == 3), shapes.guard_or_false(a=n == 3), x


@pytest.mark.parametrize(
    "program",
    [after_a_check, behind_a_branch, in_an_arm, in_a_message, of_a_float, joined, by_keyword],
)
def test_beside_other_captures(program: Callable[..., Any]) -> None:
    side_by_side(program, *CALLS)


def test_the_number_stays_on_the_device() -> None:
    outcome = side_by_side(after_a_check, *CALLS)
    assert outcome.breaks == []
    assert len(outcome.graphs) == 1


def counted(x: Tensor) -> Any:
    n = x[x > 0].shape[0]
    if shapes.statically_known_true(n == 2):
        return x + 1
    return x - 1


def counted_and_returned(x: Tensor) -> Any:
    return shapes.has_static_value(x[x > 0].numel()), shapes.guard_or_false(len(x[x > 1]) == 1)


@pytest.mark.parametrize("program", [counted, counted_and_returned])
def test_statically_known_facts_about_selection_sizes(program: Callable[..., Any]) -> None:
    outcome = side_by_side(program, *CALLS)
    assert outcome.breaks == []


def chosen(x: Tensor) -> Any:
    k = 3 if x.sum() > 1 else 4
    return x * k, shapes.statically_known_true(k == 3), shapes.has_static_value(k)


def test_a_number_that_differs_between_arms() -> None:
    side_by_side(chosen, *CALLS)


def test_a_question_with_an_answer_of_its_own_reads_the_number() -> None:
    """``sym_eq`` and what a later torch may add: no answer of ours is known."""

    def program(x: Tensor) -> Any:
        n = x.sum().int().item()
        return shapes.sym_eq((n, 2), (3, 2)), x

    side_by_side(program, *CALLS)


def sizes(x: Tensor) -> Any:
    known = shapes.statically_known_true(x.shape[0] >= 0)
    return known, shapes.statically_known_false(False), shapes.statically_known_false(True), x + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_and_constants_are_answered_by_dynamo(dynamic: bool) -> None:
    side_by_side(sizes, (torch.ones(3),), (torch.ones(4),), dynamic=dynamic)


def test_sizes_marked_as_unbacked_are_left_to_dynamo() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2
        return x + 1 if shapes.guard_or_false(x.shape[0] == 8) else x - 1

    x = torch.ones(8, 2)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    assert torch.equal(compiled(x), x * 2 - 1)  # as torch documents it


def bounded(x: Tensor) -> Tensor:
    torch._check(x.sum().item() > -100)
    torch._constrain_as_size(x.sum().int().item(), min=2, max=3)
    return x * 2


def constrained(x: Tensor) -> Tensor:
    print(x.sum().item())  # noqa: T201
    torch.sym_constrain_range(x.sum().int().item(), min=2, max=3)
    return x * 2


@pytest.mark.parametrize("program", [bounded, constrained])
def test_a_range_that_is_checked_is_no_part_of_a_message(program: Callable[..., Any]) -> None:
    """Beside a line or a check, a call that gives nothing was taken for a message's, and left."""
    side_by_side(program, *CALLS)
