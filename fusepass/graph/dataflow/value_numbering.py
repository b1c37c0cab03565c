"""Whether two nodes hold the same value: the same pure calls on the same operands.

Traced twice, ``x.isnan()`` is two nodes. They are equal when what they read was the same when each
of them read it, and nothing wrote their results since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import fx

from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.dataflow.recursion import MemoizedRecursion, Steps
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.tensor_kinds import special_tensor_reason

ValueAt = tuple[fx.Node, int]  # what a node holds at a moment of a history


def same_value(a: Any, b: Any, history: WriteHistory, moments: tuple[int, int]) -> bool:
    """Whether two arguments (nodes, numbers, containers of them) are equal for every input.

    ``moments``: when each is read.
    """
    return ValueNumbering(history).are_same(a, b, moments)


def _no_passthrough(node: fx.Node) -> Steps:
    return None
    yield


class ValueNumbering:
    """Comparisons of values of one graph; what was found is kept.

    Args:
        history: of the graph.
        passthrough: a step function: the node whose value a node hands on at the moment it is
            computed, or None.

    Attributes:
        history: of the graph.
        questions: asked so far.
    """

    def __init__(
        self, history: WriteHistory, passthrough: Callable[[fx.Node], Steps] = _no_passthrough
    ) -> None:
        self.history, self.questions, self._passthrough = history, MemoizedRecursion(), passthrough

    def are_same(self, a: Any, b: Any, moments: tuple[int, int]) -> bool:
        """Whether two arguments are equal, as :func:`same_value` has it."""
        pairs = node_pairs(a, b)
        return pairs is not None and all(
            self.questions.answer(self.nodes_are_same, (x, moments[0]), (y, moments[1]))
            for x, y in pairs
        )

    def nodes_are_same(self, first: ValueAt, second: ValueAt) -> Steps:
        """Step function: whether two nodes, each read at its moment, hold the same value.

        Whichever of them is computed later is followed to what it hands on, so that one that hands
        on the other is never followed any further.
        """
        (a, at_a), (b, at_b) = first, second
        if a is b:
            return not self.history.is_written(a, min(at_a, at_b), max(at_a, at_b))
        moments = self.history.moments
        order = (first, second) if moments[a] > moments[b] else (second, first)
        for held, other in (order, order[::-1]):
            node = yield (self._source, held)
            if node is not None:
                return (yield (self.nodes_are_same, (node, moments[held[0]]), other))
        pairs = self._operands(first, second)
        if pairs is None:
            return False
        for x, y in pairs:
            if not (yield (self.nodes_are_same, (x, moments[a]), (y, moments[b]))):
                return False
        return True

    def _source(self, held: ValueAt) -> Steps:
        """Step function: the node whose value one hands on that still holds it, or None."""
        if not self.history.holds_value(*held):
            return None
        return (yield (self._passthrough, held[0]))

    def _operands(self, first: ValueAt, second: ValueAt) -> list[tuple[fx.Node, fx.Node]] | None:
        """Which operands must be equal for two calls to be; None if these never are."""
        (a, _), (b, _) = first, second
        alike = (
            a.op == b.op
            and a.op in ("call_function", "call_method")
            and a.target == b.target
            and op_name(a) is not None
            and not is_random(a)
            and not written_nodes(a)
            and _same_kind(a, b)
            and special_tensor_reason(a) is None
            and self.history.holds_value(*first)
            and self.history.holds_value(*second)
        )
        return node_pairs((a.args, a.kwargs), (b.args, b.kwargs)) if alike else None


def node_pairs(a: Any, b: Any) -> list[tuple[fx.Node, fx.Node]] | None:
    """The nodes in two arguments that must be equal; None if anything else in them differs."""
    found: list[tuple[fx.Node, fx.Node]] = []
    for x, y in _parts(a, b):
        if isinstance(x, fx.Node) and isinstance(y, fx.Node):
            found.append((x, y))
        elif type(x) is not type(y) or repr(x) != repr(y):
            return None
    return list(dict.fromkeys(found))


def _parts(a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    """What stands in two arguments at the same place."""
    sequences = isinstance(a, (tuple, list)) and isinstance(b, (tuple, list))
    if sequences and len(a) == len(b):
        for x, y in zip(a, b, strict=True):
            yield from _parts(x, y)
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from _parts(a[key], b[key])
    elif isinstance(a, slice) and isinstance(b, slice):
        yield from _parts((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    else:
        yield a, b


def _same_kind(a: fx.Node, b: fx.Node) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None:
        return x is y
    return (x.dtype, x.device, x.requires_grad) == (y.dtype, y.device, y.requires_grad)
