"""Whether two nodes hold the same value: the same pure calls on the same operands.

Traced twice, ``x.isnan()`` is two nodes. They are equal when what they read was the same when each
of them read it, and nothing wrote their results since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.effects import is_random, written_nodes
from fusepass.graph.history import History
from fusepass.graph.tensor_kinds import follows_own_rules

Held = tuple[fx.Node, int]  # what a node holds at a moment of a history


def _itself(held: Held) -> Held:
    return held


def same_value(
    a: Any,
    b: Any,
    history: History,
    moments: tuple[int, int],
    source: Callable[[Held], Held] = _itself,
) -> bool:
    """Whether two arguments (nodes, numbers, containers of them) are equal for every input.

    Args:
        a: a node, a number or a container of them.
        b: another.
        history: of the graph both are in.
        moments: when ``a`` and when ``b`` are read.
        source: gives what a node is known to hold (a copy's original, say).
    """
    return _Comparison(history, source).same(a, b, moments)


@dataclass(frozen=True)
class _Comparison:
    """One question of :func:`same_value`, with what was already found: values are used twice."""

    history: History
    source: Callable[[Held], Held]
    known: dict[tuple[Held, Held], bool] = field(default_factory=dict)

    def same(self, a: Any, b: Any, moments: tuple[int, int]) -> bool:
        if isinstance(a, fx.Node) and isinstance(b, fx.Node):
            pair = (a, moments[0]), (b, moments[1])
            if pair not in self.known:
                self.known[pair] = self._same_nodes(*pair)
            return self.known[pair]
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
            pairs = zip(a, b, strict=False)
            return len(a) == len(b) and all(self.same(x, y, moments) for x, y in pairs)
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(self.same(a[k], b[k], moments) for k in a)
        if isinstance(a, slice) and isinstance(b, slice):
            return self.same((a.start, a.stop, a.step), (b.start, b.stop, b.step), moments)
        return type(a) is type(b) and repr(a) == repr(b)

    def _same_nodes(self, first: Held, second: Held) -> bool:
        (a, at_a), (b, at_b) = self.source(first), self.source(second)
        if a is b:
            return not self.history.is_written(a, min(at_a, at_b), max(at_a, at_b))
        alike = (
            a.op == b.op
            and a.op in ("call_function", "call_method")
            and a.target == b.target
            and op_name(a) is not None
            and not is_random(a)
            and not written_nodes(a)
            and _same_kind(a, b)
            and follows_own_rules(a) is None
            and self.history.holds(a, at_a)
            and self.history.holds(b, at_b)
        )
        read = (self.history.moments[a], self.history.moments[b])
        return alike and self.same(a.args, b.args, read) and self.same(a.kwargs, b.kwargs, read)


def _same_kind(a: fx.Node, b: fx.Node) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None:
        return x is y
    return (x.dtype, x.device, x.requires_grad) == (y.dtype, y.device, y.requires_grad)
