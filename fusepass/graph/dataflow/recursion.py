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

Query = tuple[Any, ...]  # a step function and its arguments
Steps = Generator[Query, Any, Any]


@dataclass
class _PendingQuery:
    """A question whose answer is being looked for.

    Attributes:
        query: what is asked.
        steps: its step function, under way.
        mark: how many answers rested on open questions when it was opened.
        depends_on: the depth of the outermost open question that an answer in here took for not
            shown.
    """

    query: Query
    steps: Steps
    mark: int
    depends_on: int


class MemoizedRecursion:
    """Recursive queries about one graph, each answered once.

    That something is not shown may rest on an open question, asked again further inside. Such an
    answer is used until that question is answered, and is forgotten if it then turns out to be
    shown.
    """

    def __init__(self) -> None:
        self._known: dict[Query, Any] = {}
        self._resting: dict[Query, int] = {}  # not shown, as long as the one at a depth is not
        self._in_order: list[Query] = []  # the keys of ``_resting``
        self._open: list[_PendingQuery] = []
        self._depths: dict[Query, int] = {}

    def answer(self, step: Callable[..., Steps], *arguments: Any) -> Any:
        """The answer to a question; what is false was not shown."""
        question = (step, *arguments)
        given = self._lookup(question)
        while self._open:
            top = self._open[-1]
            try:
                asked = top.steps.send(given)
            except StopIteration as end:
                given = end.value
                self._close(given)
            else:
                given = self._lookup(asked)
        return given

    def retry_unknown(self) -> None:
        """Ask again what was not shown: more may hold now than before."""
        self._known = {question: found for question, found in self._known.items() if found}

    def _lookup(self, question: Query) -> Any:
        """The answer, or None, which also begins the step function of a question not met before."""
        if question in self._known:
            return self._known[question]
        depth = self._depths.get(question, self._resting.get(question))
        if depth is not None:
            top = self._open[-1]
            top.depends_on = min(top.depends_on, depth)
            return None
        here = len(self._open)
        step, *arguments = question
        self._depths[question] = here
        self._open.append(_PendingQuery(question, step(*arguments), len(self._in_order), here))
        return None

    def _close(self, found: Any) -> None:
        done = self._open.pop()
        here = len(self._open)
        del self._depths[done.query]
        inside = self._in_order[done.mark :]
        if not found and done.depends_on < here:
            self._resting[done.query] = done.depends_on
            self._in_order.append(done.query)
            outer = self._open[-1]
            outer.depends_on = min(outer.depends_on, done.depends_on)
            return
        del self._in_order[done.mark :]
        for question in inside:
            del self._resting[question]
            if not found:
                self._known[question] = None
        self._known[done.query] = found
