"""Python floats that differ from call to call, and what a frame leaves in them.

Dynamo hands such a float to the graph as a 0-d tensor, computes with ``item()`` of it, and what the
program keeps (``self.rate *= 0.9``) leaves as ``torch.scalar_tensor`` of the result. Torch makes
operations on tensors again of what multiplies tensors, but of no ``scalar_tensor``: to that it
gives the value of the moment, with a guard, so that each value would be compiled for. Before torch
2.15 the guard gets lost where AOTAutograd's cache knows the graph from another value, and the
number stays what it was (pytorch/pytorch issue 194976).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

_SAME: dict[Any, Any] = {
    operator.add: torch.add,
    operator.sub: torch.sub,
    operator.mul: torch.mul,
    operator.neg: torch.neg,
    operator.truediv: torch.div,
}
_EXACT = 2**53  # larger integers are not all floats


def keep_as_tensors(gm: fx.GraphModule) -> None:
    """Compute what leaves a graph as a number on tensors, where both give the same bits."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.scalar_tensor):
        (given,) = node.args[:1]
        kept = isinstance(given, fx.Node) and node.kwargs.get("dtype") is torch.float64
        if not (kept and _can_be_computed(given)):
            continue
        with gm.graph.inserting_before(node):
            made = _computed(gm.graph, given)
        if made.op == "placeholder":
            continue
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)
    gm.graph.eliminate_dead_code(lambda node: not _is_number(node))
    gm.recompile()


def has_any(gm: fx.GraphModule) -> bool:
    """Whether a graph is given a float that may differ from call to call."""
    return any(
        _given(node) is not None for node in gm.graph.find_nodes(op="call_method", target="item")
    )


def _given(node: fx.Node) -> fx.Node | None:
    """The input that a number is read from."""
    source = node.args[0] if node.op == "call_method" and node.target == "item" else None
    if not (isinstance(source, fx.Node) and source.op == "placeholder"):
        return None
    value = source.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.dim() or value.device.type != "cpu":
        return None
    return source if value.dtype == torch.float64 and _is_number(node) else None


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.SymFloat)


def _can_be_computed(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return isinstance(value, float) or abs(value) <= _EXACT
    if not isinstance(value, fx.Node) or not _is_number(value):
        return False
    if _given(value) is not None:
        return True
    if value.op != "call_function" or value.target not in _SAME or value.kwargs:
        return False
    if value.target is operator.truediv and not (_is_plain(value.args[1]) and value.args[1]):
        return False  # Python raises for a zero
    return all(map(_can_be_computed, value.args))


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _computed(graph: fx.Graph, value: fx.Node) -> fx.Node:
    source = _given(value)
    if source is not None:
        return source
    args: list[Any] = list(value.args)
    args = [_computed(graph, one) if isinstance(one, fx.Node) else float(one) for one in args]
    made = graph.call_function(_SAME[value.target], tuple(args))
    given = [one.meta["example_value"] if isinstance(one, fx.Node) else one for one in args]
    made.meta = {"example_value": _SAME[value.target](*given)}
    return made
