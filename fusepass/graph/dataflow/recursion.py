"""Recursive analyses of a graph, computed without Python recursion and in linear time.

Whether two values are equal may depend on whether a mask is false, and that on whether two other
values are equal: through a graph of thousands of calls, and back to where it began. Functions that
call each other would go as deep as the graph, and in a circle without end.

A *step function* is a generator: it yields each question that its answer depends on, as
``(step function, *arguments)``, is sent the answer, and returns its own. An answer is a proof, or
it is false, which says that nothing was shown. So a question that comes back to itself is answered
with None: no proof rests on itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

Question = tuple[Any, ...]  # a step function and its arguments
Steps = Generator[Question, Any, Any]


@dataclass
class _Open:
    """A question whose answer is being looked for.

    Attributes:
        question: what is asked.
        steps: its step function, under way.
        mark: how many answers rested on open questions when it was opened.
        rests_on: the depth of the outermost open question that an answer in here took for not
            shown.
    """

    question: Question
    steps: Steps
    mark: int
    rests_on: int


class Questions:
    """Questions about one graph, each answered once.

    That something is not shown may rest on an open question, asked again further inside. Such an
    answer is used until that question is answered, and is forgotten if it then turns out to be
    shown.
    """

    def __init__(self) -> None:
        self._known: dict[Question, Any] = {}
        self._resting: dict[Question, int] = {}  # not shown, as long as the one at a depth is not
        self._in_order: list[Question] = []  # the keys of ``_resting``
        self._open: list[_Open] = []
        self._depths: dict[Question, int] = {}

    def answer(self, step: Callable[..., Steps], *arguments: Any) -> Any:
        """The answer to a question; what is false was not shown.

        Args:
            step: its step function.
            arguments: of it; hashable.
        """
        question = (step, *arguments)
        given = self._found(question)
        while self._open:
            top = self._open[-1]
            try:
                asked = top.steps.send(given)
            except StopIteration as end:
                given = end.value
                self._close(given)
            else:
                given = self._found(asked)
        return given

    def forget_unknown(self) -> None:
        """Ask again what was not shown: more may hold now than before."""
        self._known = {question: found for question, found in self._known.items() if found}

    def _found(self, question: Question) -> Any:
        """The answer, or None, which also begins the step function of a question not met before."""
        if question in self._known:
            return self._known[question]
        depth = self._depths.get(question, self._resting.get(question))
        if depth is not None:
            top = self._open[-1]
            top.rests_on = min(top.rests_on, depth)
            return None
        here = len(self._open)
        step, *arguments = question
        self._depths[question] = here
        self._open.append(_Open(question, step(*arguments), len(self._in_order), here))
        return None

    def _close(self, found: Any) -> None:
        done = self._open.pop()
        here = len(self._open)
        del self._depths[done.question]
        inside = self._in_order[done.mark :]
        if not found and done.rests_on < here:
            self._resting[done.question] = done.rests_on
            self._in_order.append(done.question)
            outer = self._open[-1]
            outer.rests_on = min(outer.rests_on, done.rests_on)
            return
        del self._in_order[done.mark :]
        for question in inside:
            del self._resting[question]
            if not found:
                self._known[question] = None
        self._known[done.question] = found
