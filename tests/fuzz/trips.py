"""Statements that make a device wait for the host: one at a time, and what stands around them."""

from __future__ import annotations

from tests.fuzz import hosted, masks, number_uses, texts
from tests.fuzz.draft import Draft, Lines, Scope, indented
from tests.fuzz.values import data

KINDS = {"number": 35, "text": 29, "mask": 25, "hosted": 16}
_WRITERS = {
    "number": number_uses.statement,
    "text": texts.statement,
    "mask": masks.statement,
    "hosted": hosted.statement,
}


def trip(d: Draft, scope: Scope) -> Lines:
    """One statement that reads a number, says something, uses a mask, or moves a tensor.

    What it leaves is a tensor of the program's shape that depends on what crossed over.
    """
    d.trips -= 1
    return _WRITERS[d.draw.weighted(KINDS)](d, scope)


def maybe(d: Draft, scope: Scope, percent: int) -> Lines:
    """A trip, in so many of a hundred places as long as the program may have more."""
    return trip(d, scope) if d.trips > 0 and d.draw.chance(percent) else []


def loop(d: Draft, scope: Scope) -> Lines:
    """A loop that carries a tensor through a trip."""
    name = d.fresh("y", scope)
    start = f"{name} = {data(d, scope)}"
    inner = scope.arm()
    inner.pre = []
    inner.add(name)
    with d.within("range_loop"), d.looping():
        body = trip(d, inner)
    last = inner.results[-1] if inner.results else name
    step = f"{name} = {name} * 0.5 + {last if last in inner.data else name}"
    scope.add(name)
    return [start, f"for i in range({d.draw.choice((2, 3))}):", *indented([*body, step])]


def quietly(d: Draft, scope: Scope) -> Lines:
    """A trip where autograd does not look."""
    return ["with torch.no_grad():", *indented(trip(d, scope))]
