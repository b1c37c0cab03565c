"""One value of a graph and what it is computed from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

INPUT = "input"
COMMUTATIVE = frozenset(
    """add mul maximum minimum eq ne logical_and logical_or logical_xor bitwise_and bitwise_or
    bitwise_xor""".split()
)
RESHAPES = frozenset("view reshape flatten unflatten _unsafe_view squeeze unsqueeze".split())


@dataclass(eq=False, slots=True)
class Term:
    """One value.

    Attributes:
        op: canonical operation, or :data:`INPUT` for a value taken as it is.
        args: arguments as ``(name, value)``; values are terms, nodes that are no tensors, numbers
            or tuples of these.
        owner: the call that computes the value.
        node: the node that holds the value; None for a value inside a composite call.
        passed: calls between this value and the one who asked for it that only hand it on.
        blocked: for a value that cannot be looked into, why.
    """

    op: str
    args: tuple[tuple[str, Any], ...]
    owner: fx.Node
    node: fx.Node | None
    passed: tuple[fx.Node, ...] = ()
    blocked: str = ""

    @property
    def key(self) -> tuple[fx.Node, fx.Node | None, str]:
        """Equal for equal values."""
        return self.owner, self.node, self.op


def operands(term: Term) -> Iterator[Term]:
    """The terms a term reads directly."""

    def inside(value: Any) -> Iterator[Term]:
        if isinstance(value, Term):
            yield value
        elif isinstance(value, tuple):
            for part in value:
                yield from inside(part)

    for _, value in term.args:
        yield from inside(value)
