"""``is``, ``in`` and types of numbers that capture leaves unknown, which Dynamo takes for known."""

from __future__ import annotations

import collections
import enum
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ..support.side_by_side import side_by_side, signed

TURNS = signed(1.0, 2.0, 3.0, 4.0)
EOS, ONE, THREE = 2, 1, 3
NAN = float("nan")
OBJECT_FIRST = torch.__version__ >= "2.12"  # before, Dynamo asks lists for equal objects only


def matched(x: Tensor) -> Tensor:
    match bool(x.sum() > 0):
        case True:
            return x * 2
        case False:
            return x - 1
    return x * 100


def is_true(x: Tensor) -> Tensor:
    return x * 2 if (x > 3).any().item() is True else x * 3


def is_not_false(x: Tensor) -> Tensor:
    ok = bool((x > 0).all())
    if ok is not False:
        return x * 2
    return x * 3


def of_a_float(x: Tensor) -> Tensor:
    return x * 2 if (float(x.sum()) > 0) is False else x * 3


def by_function(x: Tensor) -> Tensor:
    return x * 2 if operator.is_not(bool(x.sum() > 0), True) else x * 3


def in_an_arm(x: Tensor) -> Tensor:
    if x.max() > 2:
        return x * 2 if (x.sum() > 5).item() is True else x * 4
    return x * 3


def a_chain(x: Tensor) -> Tensor:
    b = bool((x.sum() > 0) and x[0] < 2)
    return x * 2 if b is True else x * 3


def returned(x: Tensor) -> tuple[Tensor, bool, bool]:
    b = bool(x.sum() > 0)
    return x * 2, b is True, b is not True


@pytest.mark.parametrize(
    "program",
    [matched, is_true, is_not_false, of_a_float, by_function, in_an_arm, a_chain, returned],
    ids=lambda program: program.__name__,
)
def test_a_truth_value_says_itself_whether_it_is_true(program: Callable[..., Any]) -> None:
    outcome = side_by_side(program, *TURNS)
    assert outcome.breaks == []
    assert len(outcome.graphs) == 1


def two_truths(x: Tensor) -> Tensor:
    a, b = bool(x[0] > 0), bool(x[1] > 2)
    return x * 2 if a is b else x * 3


def an_integer(x: Tensor) -> Tensor:
    return x * 2 if int(x[0]) is ONE else x * 3


@pytest.mark.parametrize("program", [two_truths, an_integer])
def test_numbers_whose_identity_is_unknown_are_read(program: Callable[..., Any]) -> None:
    turns = [*TURNS, (torch.tensor([3.0, 4.0, 1.0, 1.0]),), (torch.tensor([1.0, 1.0, 0.0, 2.0]),)]
    outcome = side_by_side(program, *turns)
    assert "keep" in {treatment for treatment, _ in outcome.treatments}


def a_flag(x: Tensor) -> Tensor:
    f = 0
    if x.sum() > 0:
        f = 1
    return x * 2 if f is ONE else x * 3


def a_tensor_or_a_number(x: Tensor) -> tuple[Tensor, bool]:
    y = x * 2
    r = y if x.sum() > 0 else 0
    return x * 2, r is y


def a_flag_in(x: Tensor) -> Tensor:
    n = 1 if x.sum() > 0 else 2
    return x * 2 if n in (1, 3) else x * 3


def a_nan_in(x: Tensor) -> Tensor:
    n = NAN if x.sum() > 0 else 2.0
    return x * 2 if n in [NAN, 3] else x * 3


def its_type(x: Tensor) -> Tensor:
    n = 1 if x.sum() > 0 else 2.5
    return x * 2 if isinstance(n, int) else x * 3


def of_a_tensor_or_a_number(x: Tensor) -> Tensor:
    r = x.sum() if x.sum() > 0 else 0.0
    return x * 2 if isinstance(r, Tensor) else x * 3


@pytest.mark.parametrize(
    "program",
    [a_flag, a_tensor_or_a_number, a_flag_in, its_type, of_a_tensor_or_a_number]
    + ([a_nan_in] if OBJECT_FIRST else []),
)
def test_numbers_that_differ_between_arms(program: Callable[..., Any]) -> None:
    side_by_side(program, *TURNS).only("where", "pure_total")


def test_a_type_that_is_one_in_both_arms() -> None:
    def program(x: Tensor) -> Tensor:
        n = 1.5 if x.sum() > 0 else 2.5
        return x * n if isinstance(n, float) else x * 3

    side_by_side(program, *TURNS).only("where", "pure_total")


def test_identity_of_the_size_of_a_selection() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if x[x > 3].shape[0] is ONE else x * 3

    outcome = side_by_side(program, *TURNS)
    assert ("keep", "size") in outcome.treatments


def test_a_size_that_varies() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] is THREE else x * 3

    side_by_side(program, *[(torch.ones(n),) for n in (3, 4, 5, 3, 6)])


def test_identity_of_other_objects_is_unchanged() -> None:
    mark = object()

    def program(x: Tensor) -> tuple[Any, ...]:
        b, n, kept = bool(x.sum() > 0), x.sum().item(), [1]
        other = b
        asked = (
            b is None,
            b is not None,
            n is None,
            n is mark,
            b is kept,
            n is x,
            b is other,
            n is n,
        )
        return x * 2, *asked, None in [n, 3], "a" in [b, n]

    outcome = side_by_side(program, *TURNS)
    assert outcome.breaks == []


def tokens(x: Tensor) -> Tensor:
    return x * 0 if EOS in x.tolist() else x * 2


def not_in(x: Tensor) -> Tensor:
    return x * 0 if EOS not in x.tolist() else x * 2


def truths(x: Tensor) -> Tensor:
    checks = [bool(x.isnan().any()), bool((x > 3).any())]
    return x * 2 if True in checks else x * 3


def a_tuple(x: Tensor) -> Tensor:
    return x * 2 if 10 in (int(x.sum()), 3) else x * 3


def a_deque(x: Tensor) -> Tensor:
    return x * 2 if 10 in collections.deque([x.sum().item()]) else x * 3


def searched(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() in [7, 10.0, None, "a"] else x * 3


IN = [tokens, not_in, truths, a_tuple, a_deque, searched]
WHOLE = [(x.long(),) for (x,) in TURNS]


@pytest.mark.parametrize("program", IN, ids=lambda program: program.__name__)
def test_membership_in_a_container_of_numbers(program: Callable[..., Any]) -> None:
    outcome = side_by_side(program, *WHOLE, (torch.tensor([3, 5, 1, 1]),))
    outcome.only("where", "pure_total")


def test_membership_compares_identity_first() -> None:
    """NaN equals nothing, but is in a list that holds that very object."""

    def program(x: Tensor) -> tuple[Any, ...]:
        first, other = x.tolist()
        same, new = first in [first, 3.0], first in [first + 0.0, other + 0.0]
        return x * 2, same, new, first in [NAN, 3.0], NAN in [first, other]

    side_by_side(program, (torch.tensor([NAN, 1.0]),), (torch.tensor([1.0, NAN]),))


def nested(x: Tensor) -> Tensor:
    return x * 2 if (10, 1) in [(int(x.sum()), 1), (3, 4)] else x * 3


def nested_sought(x: Tensor) -> Tensor:
    return x * 2 if (int(x.sum()), 1) in [(10, 1), (3, 4)] else x * 3


def beside_a_tensor(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() in [x.max(), 10] else x * 3


@pytest.mark.parametrize("program", [nested, nested_sought, beside_a_tensor])
def test_membership_in_a_container_of_other_objects(program: Callable[..., Any]) -> None:
    outcome = side_by_side(program, *WHOLE[:2])
    assert ("keep", "python_value") in outcome.treatments


def test_membership_in_a_list_that_was_read() -> None:
    """Dynamo takes the numbers of a list for unknown once they have differed between calls."""

    def program(x: Tensor) -> Tensor:
        return x * 0 if EOS in x.tolist() else x * 2

    filled = [torch.arange(40) + start for start in (5, 7, 0, 9, 2)]
    outcome = side_by_side(program, *[(x,) for x in filled])
    assert outcome.breaks


def test_identity_in_the_text_of_an_exception() -> None:
    def program(x: Tensor) -> Tensor:
        large = (x.abs() > 3).any().item()
        if x.sum() > 0:
            raise ValueError(
                f"{large is True}, {EOS in x.tolist()}, {(x > 3).any().item() is True}"
            )
        return x * 2

    side_by_side(program, *TURNS)


def test_identity_in_a_print() -> None:
    def program(x: Tensor) -> Tensor:
        print("large" if (x > 3).any().item() is True else "small", 10 in [x.sum().item(), 3])  # noqa: T201
        return x * 2

    side_by_side(program, *TURNS)


class Token(enum.IntEnum):
    """Numbers of a class of their own."""

    FIRST = 10
    LAST = 11


def equals_a_member(x: Tensor) -> Tensor:
    return x + 1 if int(x.sum()) == Token.FIRST else x * 2


def differs_from_a_member(x: Tensor) -> Tensor:
    n = int(x.sum())
    return x + 1 if n != Token.FIRST else x * 2


def is_one_of_members(x: Tensor) -> Tensor:
    return x + 1 if int(x.sum()) in (Token.FIRST, Token.LAST) else x * 2


@pytest.mark.parametrize("program", [equals_a_member, differs_from_a_member, is_one_of_members])
def test_members_of_an_enumeration(program: Callable[[Tensor], Tensor]) -> None:
    """Dynamo takes them for objects of another kind than numbers it does not know."""
    side_by_side(program, *signed(1.0, 2.0, 3.0, 4.0), *signed(2.0, 2.0, 3.0, 4.0))
