"""Python values that differ between the arms of a site, and code behind it that asks about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fuzz.draft import Draft, Lines, Scope
from tests.fuzz.values import data


@dataclass(frozen=True)
class Waiting:
    """A pair of values, and what may be done with one of them.

    Attributes:
        taken, other: expressions; ``{0}`` and ``{1}`` are tensors of the arm.
        uses: statements that bind ``{y}`` to a tensor of the program's shape: ``{v}`` is the value,
            ``{a}`` and ``{b}`` are tensors of the block around the site.
    """

    taken: str
    other: str
    uses: Sequence[str]


_NONE = (
    "{y} = {a} * 2 if {v} is None else {v} + {b}",
    "{y} = {a} * 3\nif {v} is not None:\n    {y} = {y} - {v}",
    "{y} = {v} * 0.5 if isinstance({v}, torch.Tensor) else {a} + 1",
)
_FLAG = (
    "{y} = {a} + 1 if {v} else {b} * 2",
    "{y} = {a} * 2\nif not {v}:\n    {y} = {y} + {b}",
    "{y} = {a} * (2 if {v} and {b}.dim() < 9 else 3)",
)
_INDEX = (
    "{y} = [{a} + 1, {b} * 2, {a} - {b}][{v}]",
    "{y} = {a} * 1\nfor _ in range({v}):\n    {y} = {y} + {b}",
    "{y} = {a} + 1 if {v} == 1 else {b} * {v}",
)
_PAIRS = (
    Waiting("None", "{0}", _NONE),
    Waiting("{0}", "None", _NONE),
    Waiting("True", "False", _FLAG),
    Waiting("False", "True", _FLAG),
    Waiting("1", "2", _INDEX),
    Waiting("[{0}]", "[{0}, {1}]", ("{y} = sum({v}) / len({v})", "{y} = {v}[-1] + {a}")),
    Waiting("({0}, 2)", "None", ("{y} = {a} + 1 if {v} is None else {v}[0] * {v}[1]",)),
    Waiting(
        '"fast"', '"slow"', ('{y} = {a} * 2 if {v} == "fast" else {b} + 1', "{y} = {a} + len({v})")
    ),
    Waiting("torch.relu", "torch.abs", ("{y} = {v}({a}) + {b}",)),
)


def drawn(d: Draft) -> Waiting:
    """One of the pairs."""
    d.tag("leaves_waiting")
    return d.draw.choice(_PAIRS)


def written(d: Draft, scope: Scope, text: str) -> str:
    """An expression of a pair, as an arm writes it."""
    return text.format(f"({data(d, scope)})", f"({data(d, scope, 0)})") if "{" in text else text


def asked(d: Draft, scope: Scope, pair: Waiting, name: str, after: str) -> tuple[Lines, bool]:
    """What the program does with the value; whether it is also returned."""
    a, b = d.draw.choice(scope.data), d.draw.choice(scope.data)
    use = d.draw.choice(pair.uses).format(y=after, v=name, a=a, b=b)
    return use.split("\n"), pair.taken != "torch.relu" and d.draw.chance(30)
