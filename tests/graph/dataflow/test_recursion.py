"""Questions that lead to further questions: deep ones, and those that come back to themselves."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from fusepass.graph.dataflow.recursion import MemoizedRecursion, Steps

Clauses = Mapping[int, Sequence[Sequence[int]]]  # shown if all of one of the sequences are


class Logic:
    """Asks what follows from clauses; counts how often each one is looked at."""

    def __init__(self, clauses: Clauses) -> None:
        self.clauses, self.asked, self.questions = clauses, [0] * len(clauses), MemoizedRecursion()

    def is_shown(self, number: int) -> Steps:
        self.asked[number] += 1
        for clause in self.clauses[number]:
            for part in clause:
                if not (yield (self.is_shown, part)):
                    break
            else:
                return True
        return False

    def shown(self, number: int) -> bool:
        return bool(self.questions.answer(self.is_shown, number))


def least_model(clauses: Clauses) -> list[bool]:
    """What follows, by applying all clauses until nothing changes."""
    shown = [False] * len(clauses)
    while True:
        more = [any(all(shown[p] for p in c) for c in clauses[i]) for i in range(len(clauses))]
        if more == shown:
            return shown
        shown = more


def test_a_long_chain_is_answered_in_linear_time() -> None:
    size = 20_000
    chain = {i: [[i + 1, i + 1]] for i in range(size)} | {size: [[]]}
    logic = Logic(chain)
    assert logic.shown(0)
    assert set(logic.asked) == {1}


def test_a_long_circle_is_not_shown_and_asked_once() -> None:
    size = 20_000
    logic = Logic({i: [[(i + 1) % size], [(i + 7) % size]] for i in range(size)})
    assert not logic.shown(0)
    assert not any(map(logic.shown, range(size)))
    assert set(logic.asked) == {1}


def test_no_proof_rests_on_itself() -> None:
    assert not Logic({0: [[0]]}).shown(0)
    assert not Logic({0: [[1]], 1: [[0]]}).shown(0)


def test_a_way_out_of_a_circle_is_a_proof() -> None:
    logic = Logic({0: [[1], [2]], 1: [[0]], 2: [[]]})
    assert logic.shown(0)
    assert logic.shown(1), "it was not shown only while 0 was open"


@pytest.mark.parametrize("seed", range(300))
def test_answers_are_what_follows(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.randrange(2, 12)
    clauses = {
        i: [
            [
                draw.randrange(size)
                for _ in range(draw.randrange(0 if draw.random() < 0.2 else 1, 4))
            ]
            for _ in range(draw.randrange(4))
        ]
        for i in range(size)
    }
    expected = least_model(clauses)
    logic, order = Logic(clauses), list(range(size))
    draw.shuffle(order)
    assert {i: logic.shown(i) for i in order} == dict(enumerate(expected))


def test_what_was_not_shown_is_asked_again() -> None:
    clauses: dict[int, list[list[int]]] = {0: [[1]], 1: [], 2: [[]]}
    logic = Logic(clauses)
    assert not logic.shown(0)
    assert logic.shown(2)
    clauses[1] = [[]]
    assert not logic.shown(0)
    logic.questions.retry_unknown()
    assert logic.shown(0)
    assert logic.shown(2)
    assert logic.asked[2] == 1, "a proof stays one"
