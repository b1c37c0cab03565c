"""Write the code of one round of a loop as a function that Dynamo can trace.

    while err > tol:              def round(x, it, …):
        x = step(x)                   x = step(x)
        it += 1             ->        it = store_it(load_it(it) + 1)
                                      if err > tol: return ends(0, x, it)
                                      return ends(1, x, it)

Every way to the next round, and every way out of the loop, becomes a ``return``. So a ``break`` in
the middle, or a second test, is an ordinary branch that returns early, and the values that a round
leaves are joined like returned values. A Python number that changes from round to round is held in
a 0-d tensor: it is read where its name is loaded, and written where it is stored.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from fusepass.capture.bytecode.instructions import handler_of, names_of, successors
from fusepass.capture.bytecode.natural_loops import SKIPPED, Loop
from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.code_objects import (
    call_of,
    called,
    copied,
    made_like,
    make_code,
)

ENDS, FIRST = "fusepass_ends", "fusepass_first"  # parameters: called at each end; the loop variable
CONTINUES = 0  # number of the end that leads to the next round
_FORBIDDEN = {
    "MAKE_FUNCTION": "a function is made in it",
    "LOAD_CLOSURE": "a variable of it is shared with a function",
    "STORE_DEREF": "it binds a variable that functions share",
    "STORE_GLOBAL": "it binds a global",
    "DELETE_FAST": "it deletes a name",
    "YIELD_VALUE": "it yields",
    "IMPORT_NAME": "it imports a module",
}


@dataclass(frozen=True)
class Exit:
    """Where the code goes on behind a loop.

    Attributes:
        index: of the instruction.
        popped: how many values were taken off the stack on the way.
    """

    index: int
    popped: int


@dataclass(frozen=True)
class Names:
    """The names of local variables that a round takes and hands on.

    Attributes:
        parameters: those that have a value when a round begins.
        numbers: those of them that are held in tensors.
        results: those that are handed to the end of the round.
    """

    parameters: tuple[str, ...]
    numbers: frozenset[str]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Round:
    """The code of one round.

    Attributes:
        code: takes the parameters, for each number what reads and what writes it, what is called
            at its ends, and the value that a ``for`` binds.
        exits: of the loop; the first has number 1.
        exhausted: number of the exit that is taken when a ``for`` has no more items, else 0.
    """

    code: CodeType
    exits: tuple[Exit, ...]
    exhausted: int


_rounds: weakref.WeakKeyDictionary[CodeType, dict[Any, Round]] = weakref.WeakKeyDictionary()


def exits_of(instructions: Sequence[Any], loop: Loop) -> tuple[tuple[Exit, ...], dict[Any, int]]:
    """The different places behind a loop, and for each way out of it the number of its place."""
    places: dict[Exit, int] = {}
    numbers: dict[Any, int] = {}
    for start, to in loop.exits:
        exhausted = loop.iterates and start == loop.head
        # Up to Python 3.12 the end of a ``for`` takes the iterator off, later a POP_TOP behind it.
        taken = exhausted and sys.version_info < (3, 13)
        popped = 1 if taken or not loop.iterates else 0
        place = followed(instructions, to, popped)
        if not loop.iterates:
            place = Exit(place.index, 0)
        numbers[start, to] = places.setdefault(place, len(places) + 1)
    return tuple(places), numbers


def followed(instructions: Sequence[Any], index: int, popped: int) -> Exit:
    """Go on over what only jumps, or takes the iterator of a ``for`` off the stack."""
    leads: list[Any] = successors(instructions)  # each of these leads on
    while True:
        name = instructions[index].opname
        after, jump, _ = leads[index]
        if name == "END_FOR":  # Dynamo pushes what this takes off
            index = after
        elif name == "POP_TOP" and popped == 0:
            index, popped = after, 1
        elif name in SKIPPED:
            index = after if jump is None else jump
        else:
            return Exit(index, popped)


def round_of(code: CodeType, instructions: Sequence[Any], loop: Loop, names: Names) -> Round:
    """The code of one round of a loop; the same object each time it is asked for.

    Args:
        code: that the loop is in.
        instructions: of the code, as Dynamo holds them.
        loop: the loop.
        names: of the variables that the round takes and hands on.
    """
    made = _rounds.setdefault(code, {})
    if (loop.head, names) not in made:
        made[loop.head, names] = _Writer(code, instructions, loop, names).write()
    return made[loop.head, names]


class _Writer:
    def __init__(
        self, code: CodeType, instructions: Sequence[Any], loop: Loop, names: Names
    ) -> None:
        self.code, self.instructions, self.loop = code, instructions, loop
        self.parameters, self.numbers = names.parameters, names.numbers
        self.results = names.results
        self.exits, self.numbered = exits_of(instructions, loop)
        self.bound = _bound_sets(instructions, loop, self.parameters)
        self.leads = successors(instructions)
        self.suffix = ""

    def write(self) -> Round:
        while ENDS + self.suffix in self.code.co_varnames:  # this code is a round itself
            self.suffix += "_"
        helpers = [name(n) for n in sorted(self.numbers) for name in (self._loader, self._storer)]
        given = (*self.parameters, *helpers, ENDS + self.suffix, FIRST + self.suffix)
        made = make_code(self.code, given, self._instructions)
        exhausted = 0
        if self.loop.iterates:
            exhausted = next(n for (at, _), n in self.numbered.items() if at == self.loop.head)
        return Round(made, self.exits, exhausted)

    def _loader(self, name: str) -> str:
        """The parameter that reads a number."""
        return f"fusepass_load_{name}{self.suffix}"

    def _storer(self, name: str) -> str:
        """The parameter that writes a number."""
        return f"fusepass_store_{name}{self.suffix}"

    def _instructions(self, fresh: Sequence[Any]) -> list[Any]:
        assert len(fresh) == len(self.instructions)
        self._check()
        head, members = self.loop.head, self.loop.members
        self.fresh = fresh
        self.own = {at: self._translated(fresh[at]) for at in sorted(members)}
        self.open: dict[Any, list[Any]] = {}  # ends of the round that some jump leads to
        self.written = [made_like(fresh[head], "RESUME", arg=0)]
        start = head
        if self.loop.iterates:
            start = self.leads[head][0]  # type: ignore[assignment]
            self.written.append(made_like(fresh[head], "LOAD_CONST", argval=None))
            self.written.append(made_like(fresh[head], "LOAD_FAST", argval=FIRST + self.suffix))
        self.written += _jump_to(fresh[head], self.own[start][0])
        for at in sorted(members - {head} if self.loop.iterates else members):
            self._put(at)
        for end in self.open.values():
            self.written += end
        return self.written

    def _put(self, at: int) -> None:
        """Write one instruction of the loop, and what follows it if that is not the next one."""
        self.written += self.own[at]
        after, jump, _ = self.leads[at]
        last = self.own[at][-1]
        if jump is not None:
            inside = jump in self.loop.members and jump != self.loop.head
            last.target = self.own[jump][0] if inside else self._end_for(at, jump)[0]
            if not inside:
                _point_forward(last)
        if after is None:
            return
        if after in self.loop.members and after != self.loop.head:
            if after != at + 1:
                self.written += _jump_to(self.fresh[at], self.own[after][0])
            return
        end = self._end_for(at, after)  # it stands here: chains of tests are found by that
        self.written += end
        self.open = {key: held for key, held in self.open.items() if held is not end}

    def _end_for(self, at: int, to: int) -> list[Any]:
        """The end of the round that an instruction leads to."""
        number = CONTINUES if to == self.loop.head else self.numbered[at, to]
        known = tuple(name for name in self.results if name in self.bound[at])
        if (number, known) not in self.open:
            self.open[number, known] = self._end(self.fresh[at], number, known)
        return self.open[number, known]

    def _end(self, like: Any, number: int, known: tuple[str, ...]) -> list[Any]:
        """End the round: hand the values to ``ends``, and return what that gives."""
        made = called(like, [made_like(like, "LOAD_FAST", argval=ENDS + self.suffix)])
        made.append(made_like(like, "LOAD_CONST", argval=number))
        for name in self.results:
            if name in known:
                made.append(made_like(like, "LOAD_FAST", argval=name))
            else:
                made.append(made_like(like, "LOAD_CONST", argval=None))
        return [*made, *call_of(like, len(self.results) + 1), made_like(like, "RETURN_VALUE")]

    def _check(self) -> None:
        outer = getattr(handler_of(self.instructions[self.loop.head]), "target", None)
        for at in self.loop.members:
            one = self.instructions[at]
            if getattr(handler_of(one), "target", None) is not outer:
                raise Refusal(Reason.LOOP, "a with-block or try stands in the loop")
            if one.opname in _FORBIDDEN:
                raise Refusal(Reason.LOOP, f"in the loop, {_FORBIDDEN[one.opname]}")

    def _translated(self, one: Any) -> list[Any]:
        """An instruction as a round has it: cells are read as locals, numbers through tensors."""
        names = names_of(one)
        if one.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            one = made_like(one, "LOAD_FAST", argval=one.argval)
        held = [n for n in names if n in self.numbers and "_FAST" in one.opname]
        if not held:
            return [copied(one)]
        if one.opname == "STORE_FAST":
            function = called(one, [made_like(one, "LOAD_FAST", argval=self._storer(one.argval))])
            value = copied(one)
            again = made_like(one, "LOAD_FAST", argval=one.argval)
            return [value, *function, again, *call_of(one, 1), copied(one)]
        if one.opname in ("LOAD_FAST", "LOAD_FAST_CHECK"):
            function = called(one, [made_like(one, "LOAD_FAST", argval=self._loader(one.argval))])
            return [*function, copied(one), *call_of(one, 1)]
        raise Refusal(Reason.LOOP, f"{one.opname} of a number that changes")


def _jump_to(like: Any, target: Any) -> list[Any]:
    return [made_like(like, "JUMP_FORWARD", target=target)]


def _point_forward(jump: Any) -> None:
    """Make a backward jump of Python 3.11 one that leads forward: ends stand behind."""
    name = jump.opname.replace("BACKWARD", "FORWARD")
    jump.opname, jump.opcode = name, dis.opmap[name]


def _bound_sets(
    instructions: Sequence[Any], loop: Loop, parameters: Sequence[str]
) -> dict[int, frozenset[str]]:
    """The names that are bound behind each instruction of a round, whichever way led there."""
    leads = successors(instructions)
    start = leads[loop.head][0] if loop.iterates else loop.head
    before: dict[int, frozenset[str]] = {start: frozenset(parameters)}  # type: ignore[dict-item]
    behind: dict[int, frozenset[str]] = {}
    todo = [start]
    while todo:
        at: int = todo.pop()  # type: ignore[assignment]
        one = instructions[at]
        stored = names_of(one) if one.opname.startswith("STORE_FAST") else ()
        behind[at] = before[at] | frozenset(stored)
        for to in leads[at][:2]:
            if to is None or to == loop.head or to not in loop.members:
                continue
            now = behind[at] if to not in before else before[to] & behind[at]
            if to not in before or now != before[to]:
                before[to] = now
                todo.append(to)
    return behind
