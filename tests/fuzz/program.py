"""A program as a plain value: its text, and where in it the sites are."""

from __future__ import annotations

import contextlib
import itertools
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fusepass.errors import ArgumentType

_FILES = itertools.count()


@dataclass(frozen=True)
class Site:
    """One branch on a tensor, or one round trip to the host.

    Attributes:
        line: of the program's text, from 1.
        shapes: keys of :data:`tests.fuzz.shapes.SHAPES` it is an example of, or of
            :data:`tests.fuzz.shapes.TRIPS`.
        trip: whether it is a round trip.
    """

    line: int
    shapes: frozenset[str]
    trip: bool = False


@dataclass(frozen=True)
class Program:
    """A program to be run in eager mode and compiled.

    The text defines ``make()``, which returns a fresh callable and the object that holds its state;
    ``inputs()``, which returns fresh tuples of arguments; ``GRADS``, positions of the arguments
    that require grad in training; and ``ROUNDED``, whether sums may be made in another order.

    Attributes:
        source: the text.
        sites: its branches and round trips, in order of line.
        training: whether it is also to be trained.
        name: for messages: where it came from.
    """

    source: str
    sites: tuple[Site, ...] = field(default=(), compare=False)
    training: bool = False
    name: str = "program"

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True)
class Loaded:
    """The names of a program's text, under a file name that tracebacks and reports can quote."""

    file: str
    make: Callable[[], tuple[Callable[..., Any], Any]]
    inputs: Callable[[], list[tuple[Any, ...]]]
    grads: tuple[int, ...]
    rounded: bool


@contextlib.contextmanager
def loaded(program: Program) -> Iterator[Loaded]:
    """Run a program's text; its lines can be quoted until the scope ends."""
    file = f"<tests.fuzz {next(_FILES)}>"
    text = program.source
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names: dict[str, Any] = {"__name__": __name__}
    try:
        exec(compile(text, file, "exec"), names)
        for name in ("make", "inputs"):
            if not callable(names.get(name)):
                expected = f"one that defines make() and inputs(); it lacks {name}()"
                raise ArgumentType("the text of a Program", text, expected)
        yield Loaded(
            file,
            names["make"],
            names["inputs"],
            tuple(names.get("GRADS", ())),
            names.get("ROUNDED", False),
        )
    finally:
        linecache.cache.pop(file, None)
