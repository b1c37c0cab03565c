"""Boolean formulas over the predicates of captured branches.

A formula says for which outcomes of the branches something holds. Equal formulas are one number:
they are kept as ordered binary decision diagrams, so "for every outcome" and "for none" are
recognized whatever the way that led there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

Recorder = Callable[..., fx.Node]  # records a call of a function with operands

NEVER, ALWAYS = 0, 1
_MOST = 10_000  # nodes of diagrams in one graph


class TooManyOutcomes(Exception):
    """The formulas depend on more combinations of branches than are kept track of."""


class Formulas:
    """The formulas of one graph; each is a number, ``NEVER`` or ``ALWAYS`` where it is constant."""

    def __init__(self) -> None:
        self._tests: list[tuple[int, int, int]] = []  # of a formula: variable, if true, if false
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._chosen: dict[tuple[int, int, int], int] = {}
        self._variables: dict[fx.Node, int] = {}
        self._predicates: list[fx.Node] = []

    def either(self, a: int, b: int) -> int:
        """``a or b``."""
        return self._choose(a, ALWAYS, b)

    def where(self, predicate: fx.Node, taken: int, other: int) -> int:
        """``taken`` where the predicate holds, else ``other``."""
        if predicate not in self._variables:
            self._variables[predicate] = len(self._predicates)
            self._predicates.append(predicate)
        test = self._number(self._variables[predicate], ALWAYS, NEVER)
        return self._choose(test, taken, other)

    def predicates(self, formula: int) -> list[fx.Node]:
        """The predicates on which a formula depends."""
        return [
            self._predicates[v]
            for v in sorted({self._tests[n - 2][0] for n in self._below([formula])})
        ]

    def size(self, formulas: list[int]) -> int:
        """How many tests some formulas are made of, those they share counted once."""
        return len(self._below(formulas))

    def record(self, formula: int, call: Recorder, known: dict[int, fx.Node]) -> fx.Node:
        """Record the calls that compute a formula that is no constant, as a 0-d bool tensor.

        Args:
            formula: the formula.
            call: records one call.
            known: what was recorded before, by formula.
        """
        for number in self._below([formula]):
            if number not in known:
                known[number] = self._record_one(number, call, known)
        return known[formula]

    def _record_one(self, number: int, call: Recorder, known: dict[int, fx.Node]) -> fx.Node:
        variable, taken, other = self._tests[number - 2]
        predicate = self._predicates[variable]
        sides = []
        if taken != NEVER:
            both = (predicate, known.get(taken))
            sides.append(predicate if taken == ALWAYS else call(torch.logical_and, *both))
        if other != NEVER:
            refuted = call(torch.logical_not, predicate)
            both = (refuted, known.get(other))
            sides.append(refuted if other == ALWAYS else call(torch.logical_and, *both))
        return sides[0] if len(sides) == 1 else call(torch.logical_or, *sides)

    def _below(self, formulas: list[int]) -> list[int]:
        """The formulas that some are made of, constants left out, each behind its parts."""
        found: set[int] = set()
        todo = list(formulas)
        while todo:
            number = todo.pop()
            if number > ALWAYS and number not in found:
                found.add(number)
                todo += self._tests[number - 2][1:]
        return sorted(found)  # a part has its number before the whole

    def _number(self, variable: int, taken: int, other: int) -> int:
        if taken == other:
            return taken
        key = (variable, taken, other)
        if key not in self._numbers:
            if len(self._tests) >= _MOST:
                raise TooManyOutcomes
            self._tests.append(key)
            self._numbers[key] = len(self._tests) + 1
        return self._numbers[key]

    def _choose(self, test: int, taken: int, other: int) -> int:
        if test <= ALWAYS:
            return taken if test else other
        if taken == other or (taken, other) == (ALWAYS, NEVER):
            return taken if taken == other else test
        key = (test, taken, other)
        if key not in self._chosen:
            first = min(self._tests[n - 2][0] for n in key if n > ALWAYS)
            sides = [
                self._choose(*(self._side(n, first, side) for n in key)) for side in (True, False)
            ]
            self._chosen[key] = self._number(first, *sides)
        return self._chosen[key]

    def _side(self, formula: int, variable: int, outcome: bool) -> int:
        """A formula where one variable has an outcome; no variable of it comes before that one."""
        if formula <= ALWAYS or self._tests[formula - 2][0] != variable:
            return formula
        return self._tests[formula - 2][1 if outcome else 2]
