"""What a predicate that came out one way says about the masks it was reduced from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusepass.graph.dataflow.mask_facts import MaskFacts, facts_of
from fusepass.graph.dataflow.value_numbering import ValueNumbering
from fusepass.graph.dataflow.write_history import WriteHistory

from ..arms import captured

MASK = torch.tensor([[True, False], [False, False], [False, True]])


def known(
    predicate: Callable[[Tensor], Any], outcome: bool, about: Callable[[Tensor], Any]
) -> tuple[bool, bool]:
    """Whether ``about(mask)`` is known to be false everywhere, and to be true everywhere."""

    def program(mask: Tensor) -> tuple[Any, Any]:
        return predicate(mask), about(mask)

    tested, asked = returned(program, MASK.clone())
    facts, end = learned(tested, outcome)
    return holds(facts, False, asked, end), holds(facts, True, asked, end)


def holds(facts: MaskFacts, value: bool, mask: Any, moment: int) -> bool:
    """Whether all elements of a mask, read at a moment, are known to have a value."""
    return bool(facts.values.questions.answer(facts.all_equal, value, mask, moment))


def learned(tested: fx.Node, outcome: bool) -> tuple[MaskFacts, int]:
    """What a predicate says when it is read at the end of its graph, and that moment."""
    (output,) = (n for n in tested.graph.nodes if n.op == "output")
    history = WriteHistory(tested.graph, output)
    end = history.moments[output]
    return facts_of(tested, outcome, ValueNumbering(history), end), end


def returned(program: Callable[[Tensor], Any], x: Tensor) -> tuple[Any, ...]:
    """What a program returns, as arguments of its graph's output; its input stands last."""
    graph = captured(program, x)[0].graph
    (output,) = (n for n in graph.nodes if n.op == "output")
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    outputs: Any = output.args[0]
    return outputs if len(outputs) > 1 else (*outputs, *inputs)


EMPTY: dict[str, tuple[Callable[[Tensor], Any], bool]] = {
    "any": (lambda m: m.any(), False),
    "function": (lambda m: torch.any(m), False),
    "not any": (lambda m: ~m.any(), True),
    "logical_not any": (lambda m: torch.logical_not(m.any()), True),
    "sum > 0": (lambda m: m.sum() > 0, False),
    "sum != 0": (lambda m: m.sum() != 0, False),
    "sum >= 1": (lambda m: m.sum() >= 1, False),
    "sum == 0": (lambda m: m.sum() == 0, True),
    "sum <= 0": (lambda m: m.sum() <= 0, True),
    "sum < 1": (lambda m: m.sum() < 1, True),
    "count": (lambda m: torch.count_nonzero(m) > 0, False),
    "sum of another dtype": (lambda m: m.sum(dtype=torch.int32) > 0, False),
    "max": (lambda m: m.max(), False),
    "all of the inverse": (lambda m: (~m).all(), True),
    "reshaped": (lambda m: m.any().reshape(1, 1), False),
    "or": (lambda m: m.any() | (m.sum() > 3), False),
    "and": (lambda m: ~m.any() & (m.sum() < 3), True),
    "any of or": (lambda m: (m | (m & m)).any(), False),
    "sum reshaped": (lambda m: m.sum().reshape(1) > 0, False),
    "sum converted": (lambda m: m.sum().to(torch.uint8) > 0, False),
    "sum converted twice": (
        lambda m: m.sum().to(torch.half).to(torch.int8).to(torch.int64) > 0,
        False,
    ),
    "any repeated": (lambda m: m.any().expand(2).any(), False),
    "not any, as a number": (lambda m: torch.logical_not(m.any().to(torch.int32)), True),
    "or of numbers": (lambda m: (m.any().to(torch.int32) | m.any()).to(torch.bool), False),
}
NOTHING: dict[str, tuple[Callable[[Tensor], Any], bool]] = {
    "any came out true": (lambda m: m.any(), True),
    "not any came out false": (lambda m: ~m.any(), False),
    "sum > 0 came out true": (lambda m: m.sum() > 0, True),
    "sum > 1": (lambda m: m.sum() > 1, False),
    "sum >= 2": (lambda m: m.sum() >= 2, False),
    "sum >= 0": (lambda m: m.sum() >= 0, True),
    "sum != 1": (lambda m: m.sum() != 1, False),
    "sum == 1": (lambda m: m.sum() == 1, True),
    "sum < 2": (lambda m: m.sum() < 2, True),
    "sum > -1": (lambda m: m.sum() > -1, False),
    "all came out false": (lambda m: m.all(), False),
    "all of the inverse came out false": (lambda m: (~m).all(), False),
    "min": (lambda m: m.min(), False),
    "or came out true": (lambda m: m.any() | (m.sum() > 3), True),
    "and came out false": (lambda m: m.any() & (m.sum() > 3), False),
    "any of a row": (lambda m: m[0].any(), False),
    "any of a slice": (lambda m: m[:, 1:].any(), False),
    "any per row": (lambda m: m.any(0)[0], False),
    "sum per row": (lambda m: m.sum(1)[0] > 0, False),
    "an element": (lambda m: m[0, 0], False),
    "any of and": (lambda m: (m & m.flip(0)).any(), False),
    "sum of numbers": (lambda m: (m.float() - 0.5).sum() > 0, False),
    "exclusive or": (lambda m: m.any() ^ m.all(), False),
    "sum of two": (lambda m: m.sum() - 1 > 0, False),
    "another mask": (lambda m: (m ^ True).any(), False),
    "inverse of a number": (lambda m: (~m.any().to(torch.int32)).bool(), True),
    "inverse of a number, in eight bits": (lambda m: (~m.any().to(torch.uint8)).bool(), True),
    "any repeated never": (lambda m: m.any().expand(0).any(), False),
    "the bits of a sum": (lambda m: m.sum().view(torch.float64) >= 1, False),
    "a complex sum": (lambda m: m.sum().to(torch.complex64) == 0, True),
}


@pytest.mark.parametrize("name", EMPTY)
def test_no_element_is_true(name: str) -> None:
    assert known(*EMPTY[name], lambda m: m) == (True, False)


@pytest.mark.parametrize("name", NOTHING)
def test_masks_about_which_nothing_is_known(name: str) -> None:
    assert known(*NOTHING[name], lambda m: m) == (False, False)


FALSE_TOO: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda m: m.view(-1),
    "row": lambda m: m[1],
    "slice": lambda m: m[:, :1],
    "transposed": lambda m: m.t(),
    "expanded": lambda m: m.unsqueeze(0).expand(4, 3, 2),
    "copy": lambda m: m.clone(),
    "and with anything": lambda m: m & m.flip(0).logical_not(),
    "or with itself": lambda m: m | m.clone(),
    "inverse twice": lambda m: ~~m,
    "repeated": lambda m: m.repeat(2, 1),
}
TRUE_TOO: dict[str, Callable[[Tensor], Any]] = {
    "inverse": lambda m: ~m,
    "logical_not": lambda m: m.logical_not(),
    "inverse of a view": lambda m: ~m.view(-1),
    "or with anything": lambda m: ~m | m.flip(0),
    "and of inverses": lambda m: ~m & ~m[:1],
}
UNKNOWN: dict[str, Callable[[Tensor], Any]] = {
    "or with anything": lambda m: m | (m.sum(1, keepdim=True) < 9),
    "and of the inverse": lambda m: ~m & (m.sum(1, keepdim=True) < 9),
    "exclusive or": lambda m: m ^ True,
    "compared": lambda m: m == m.flip(0),
    "count": lambda m: m.sum() > 5,
    "rolled": lambda m: torch.cat([m, ~m]),
}


@pytest.mark.parametrize("name", FALSE_TOO)
def test_what_is_made_of_an_empty_mask_is_empty(name: str) -> None:
    assert known(lambda m: m.any(), False, FALSE_TOO[name]) == (True, False)


@pytest.mark.parametrize("name", TRUE_TOO)
def test_and_what_is_made_of_its_inverse_is_full(name: str) -> None:
    assert known(lambda m: m.any(), False, TRUE_TOO[name]) == (False, True)


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_predicates_are_unknown(name: str) -> None:
    assert known(lambda m: m.any(), False, UNKNOWN[name]) == (False, False)


@pytest.mark.parametrize(
    ("predicate", "outcome"),
    [(lambda m: m.all(), True), (lambda m: m.min(), True), (lambda m: ~(~m).any(), True)],
)
def test_a_full_mask(predicate: Callable[[Tensor], Any], outcome: bool) -> None:
    assert known(predicate, outcome, lambda m: m) == (False, True)
    assert known(predicate, outcome, lambda m: ~m.t()) == (True, False)
    assert known(predicate, outcome, lambda m: m | m.flip(0)) == (False, True)


def test_a_mask_of_no_elements_is_both_empty_and_full() -> None:
    """So nothing may follow from a mask being empty about its not being full."""
    empty = torch.ones(0, dtype=torch.bool)
    assert not empty.any()
    assert empty.all()


def test_a_mask_of_numbers_is_none() -> None:
    def program(x: Tensor) -> tuple[Any, Any]:
        return x.any(), x

    tested, asked = returned(program, torch.ones(3))
    facts, end = learned(tested, False)
    assert not holds(facts, False, asked, end)


def test_the_same_mask_made_again() -> None:
    def program(x: Tensor) -> tuple[Any, Any, Any, Any]:
        first = (x > 0).any()
        again = x > 0
        x.add_(1)
        return first, again, x > 0, x >= 0

    tested, again, later, other = returned(program, torch.ones(3))
    facts, end = learned(tested, False)
    assert holds(facts, False, again, end)
    assert not holds(facts, False, later, end), "x was written in between"
    assert not holds(facts, False, other, end)


def test_a_mask_written_after_it_was_asked() -> None:
    def program(mask: Tensor) -> tuple[Any, Any]:
        first, h = mask.clone(), mask.clone()
        asked = first.any() | h.any()
        h.logical_not_()
        return asked, first, h

    tested, first, h = returned(program, MASK.clone())
    facts, end = learned(tested, False)
    assert holds(facts, False, first, end)
    assert not holds(facts, False, h, end)


COUNTS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "uint8": (lambda m: m.sum(dtype=torch.uint8), 255),
    "converted": (lambda m: m.sum().to(torch.uint8), 255),
    "int8": (lambda m: m.sum().to(torch.int8), 127),
    "int16": (lambda m: m.count_nonzero().to(torch.int16), 2**15 - 1),
    "by type": (lambda m: m.sum().type(torch.uint8), 255),
    "repeated": (lambda m: m.sum().view(1).expand(1).to(torch.uint8), 255),
    "widened again": (lambda m: m.sum().to(torch.int8).to(torch.int64), 127),
    "by double": (lambda m: m.sum().to(torch.float64).to(torch.uint8), 255),
    "by half, which rounds up": (lambda m: m.sum().to(torch.float16).to(torch.int16), 2**11),
    "double of a byte": (lambda m: m.sum().to(torch.uint8).to(torch.float64), 255),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_that_comes_round_to_zero(name: str) -> None:
    """256 true elements are none in eight bits."""
    count, most = COUNTS[name]
    for elements, exact in ((most, True), (most + 1, False)):
        tested, asked = returned(
            lambda m: (count(m) > 0, m.clone()), torch.ones(elements, dtype=torch.bool)
        )
        facts, end = learned(tested, False)
        assert holds(facts, False, asked, end) is exact


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float16, torch.bfloat16])
def test_a_count_that_does_not(dtype: torch.dtype) -> None:
    """As a float it may be rounded, and be infinite: not zero."""
    tested, asked = returned(
        lambda m: (m.sum().to(dtype) > 0, m.clone()), torch.ones(70000, dtype=torch.bool)
    )
    facts, end = learned(tested, False)
    assert holds(facts, False, asked, end)


def test_masks_used_twice_are_asked_about_once() -> None:
    def ladder(m: Tensor, rounds: int) -> Tensor:
        for _ in range(rounds):
            m = (m | m.t().t()) & (m | m.t().t().clone())
        return m

    def deep(m: Tensor) -> Tensor:
        return ladder(m, 40)

    assert known(lambda m: m.any(), False, deep) == (True, False)
    assert known(lambda m: deep(m).all(), True, lambda m: m) == (False, False)
    assert known(lambda m: m.all(), True, deep) == (False, True)
