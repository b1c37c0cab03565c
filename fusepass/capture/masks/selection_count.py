"""Compute ``if x[mask].numel() == 0`` and similar tests from the mask alone.

While tracing, such a number is an integer times a symbol that stands for a size. In a condition it
is the count of the mask, a tensor, as long as nobody has written the mask since it selected.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from fusepass.capture.masks.count_lowering import mask_of_count, max_count_of
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.scalar import Range
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import linear_size, unknown_sizes
from fusepass.torch_private.dynamo.stack import proxy_of


def is_count(node: fx.Node) -> bool:
    """Whether a node is a number made of one size that a mask gave, and known numbers."""
    size = linear_size(node.meta.get("example_value"))
    return size is not None and selection_of(node.graph, size[0]) is not None


def count(translator: Any, node: fx.Node) -> tuple[fx.Node, Range]:
    """Record the tensor that equals such a number, int64 of no dimensions; and what it can be.

    Raises:
        Refusal: the mask was written since it selected.
    """
    found = linear_size(node.meta.get("example_value"))
    root = None if found is None else selection_of(node.graph, found[0])
    if found is None or root is None:
        raise Refusal(Reason.PREDICATE, "a size that no mask gave is tested")
    mask = mask_now(root)
    if mask is None:
        raise Refusal(Reason.PREDICATE, "the mask is written before its count is tested")
    _, factor, rest = found
    made = record_count(translator, mask)
    if factor != 1:
        made = _record(translator, torch.mul, made.as_proxy(), factor)
    if rest:
        made = _record(translator, torch.add, made.as_proxy(), rest)
    return made.as_proxy().node, _range(factor, rest, mask)


def range_of_count(node: fx.Node) -> Range | None:
    """What a number can be for which :func:`is_count` holds; None for others."""
    found = linear_size(node.meta.get("example_value"))
    root = None if found is None else selection_of(node.graph, found[0])
    mask = mask_of_count(root)
    return None if found is None or mask is None else _range(*found[1:], mask)


def _range(factor: int, rest: int, mask: fx.Node) -> Range:
    least, most = sorted(factor * end + rest for end in (0, max_count_of(mask)))
    return Range(least, most)


def mask_now(root: fx.Node) -> fx.Node | None:
    """The mask by which ``root`` selected, if it still holds what it held then."""
    mask = mask_of_count(root)
    last = next(iter(reversed(root.graph.nodes)))
    history = WriteHistory(root.graph, last)
    if mask is None:
        return None
    written = history.is_written(mask, history.moments[root], history.moments[last] + 1)
    return None if written else mask


def record_count(translator: Any, mask: fx.Node) -> Any:
    """Record how many elements of a mask, of truth values or other numbers, are not zero."""
    tracked = proxy_of(translator, mask)
    if tensor_value(mask).dtype is not torch.bool:  # type: ignore[union-attr]
        tracked = _record(translator, operator.ne, tracked, 0).as_proxy()
    return stack.wrap_call(translator, "call_method", "sum", (tracked,), {})


def _record(translator: Any, call: Any, *args: Any) -> Any:
    return stack.wrap_call(translator, "call_function", call, args, {})


def selection_of(graph: fx.Graph, symbol: Any) -> fx.Node | None:
    """The call that selects as many elements as a symbol stands for."""
    for node in graph.nodes:
        if symbol in unknown_sizes(tensor_value(node)):
            return node if mask_of_count(node) is not None else None
    return None
