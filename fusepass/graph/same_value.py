"""Whether two nodes compute the same value: the same pure calls on the same operands.

Traced twice, ``x.isnan()`` is two nodes. They are equal when nothing wrote the memory they read in
between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.effects import is_random, written_nodes
from fusepass.graph.memory import memories


def _itself(node: fx.Node) -> fx.Node:
    return node


def same_value(a: Any, b: Any, source: Callable[[fx.Node], fx.Node] = _itself) -> bool:
    """Whether two arguments (nodes, numbers, containers of them) are equal for every input.

    Args:
        a: a node, a number or a container of them.
        b: another.
        source: gives the node whose value a node is known to hold (a copy's original, say).
    """
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        read: set[fx.Node] = set()
        return a is b or (_same(a, b, read, source) and not _written_between(a, b, read))
    return _same(a, b, set(), source)


def _same(a: Any, b: Any, read: set[fx.Node], source: Callable[[fx.Node], fx.Node]) -> bool:
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        a, b = source(a), source(b)
        if a is b:
            read.add(a)
            return True
        alike = (
            a.op == b.op
            and a.op in ("call_function", "call_method")
            and a.target == b.target
            and op_name(a) is not None
            and not is_random(a)
            and not written_nodes(a)
            and _same_kind(a, b)
        )
        return (
            alike
            and _same(a.args, b.args, read, source)
            and _same(a.kwargs, b.kwargs, read, source)
        )
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(
            _same(x, y, read, source) for x, y in zip(a, b, strict=True)
        )
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k], read, source) for k in a)
    if isinstance(a, slice) and isinstance(b, slice):
        return _same((a.start, a.stop, a.step), (b.start, b.stop, b.step), read, source)
    return type(a) is type(b) and repr(a) == repr(b)


def _same_kind(a: fx.Node, b: fx.Node) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None:
        return x is y
    return (x.dtype, x.device, x.requires_grad) == (y.dtype, y.device, y.requires_grad)


def _written_between(a: fx.Node, b: fx.Node, read: set[fx.Node]) -> bool:
    """Whether something between the two nodes writes what both read."""
    keys = set(memories(read)) | set(memories([a])) | set(memories([b]))
    inside = False
    for node in a.graph.nodes:
        if node is a or node is b:
            if inside:
                return False
            inside = True
        elif inside and not keys.isdisjoint(memories(written_nodes(node))):
            return True
    return True
