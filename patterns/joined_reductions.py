"""Two reductions to one truth value, joined by the connective they distribute over, become one.

    ``any(x) | any(y)  ->  any(x | y)``
    ``all(x) & all(y)  ->  all(x & y)``

Exact, because ``any`` is a repeated ``or`` and ``all`` a repeated ``and``, both associative and
commutative. The pointwise connective is fused into the reduction that reads ``x`` and ``y``
anyway, so a kernel and its launch go away: the guard ``isinf(h).any() or isnan(h).any()`` of fp16
encoders, once its two branches are one, has exactly this form.
"""

from __future__ import annotations

import torch
from torch import fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import GraphRule, Reject, RuleSite
from fusepass.torch_private.fx.graphs import known_equal

_REDUCTION_OF = {
    "logical_or": "any",
    "bitwise_or": "any",
    "logical_and": "all",
    "bitwise_and": "all",
}
_ELEMENTWISE = {"any": torch.logical_or, "all": torch.logical_and}


def _joins_truth_values(node: fx.Node) -> bool:
    name = op_name(node)
    value = tensor_value(node)
    if name not in _REDUCTION_OF or value is None or value.dim() != 0 or node.kwargs:
        return False
    return len(node.args) == 2 and all(_is_full(arg, _REDUCTION_OF[name]) for arg in node.args)


def _is_full(node: object, reduction: str) -> bool:
    """Whether a node reduces a whole bool tensor, with no dim, keepdim or out."""
    if not isinstance(node, fx.Node) or op_name(node) != reduction:
        return False
    if len(node.args) != 1 or node.kwargs:
        return False
    source = tensor_value(node.args[0])
    return source is not None and source.dtype is torch.bool


def _check(site: RuleSite) -> Reject | None:
    node = site.anchor
    left, right = node.args
    for reduction in (left, right):
        if len(reduction.users) > 1:  # type: ignore[union-attr]
            return Reject(
                Reason.EXTRA_USER,
                "the truth value is read elsewhere too, so its reduction stays",
                node,
            )
    x, y = (tensor_value(r.args[0]) for r in (left, right))  # type: ignore[union-attr]
    same_shape = x is not None and y is not None and x.dim() == y.dim()
    if not same_shape or not all(map(known_equal, x.shape, y.shape)):  # type: ignore[union-attr]
        return Reject(Reason.SHAPE_MISMATCH, "the two tensors reduced differ in shape", node)
    if _written_between(site):
        return Reject(Reason.ALIAS, "what is reduced is written before the two are joined", node)
    if x.device != y.device:  # type: ignore[union-attr]
        return Reject(Reason.DEVICE_MISMATCH, "the two tensors reduced are on two devices", node)
    return None


def _written_between(site: RuleSite) -> bool:
    """Whether a tensor that is reduced is written after its reduction and before the join."""
    reductions = set(site.anchor.args)
    reduced = {memory_of(r.args[0]) for r in reductions}  # type: ignore[union-attr]
    started = False
    for node in site.gm.graph.nodes:
        if node is site.anchor:
            return False
        started = started or node in reductions
        if started and any(memory_of(written) in reduced for written in written_nodes(node)):
            return True
    return False


def _replace(site: RuleSite) -> None:
    node, graph = site.anchor, site.gm.graph
    reduction = _REDUCTION_OF[str(op_name(node))]
    sources = tuple(r.args[0] for r in node.args)  # type: ignore[union-attr]
    dropped = node.args
    with graph.inserting_before(node):
        joined = graph.call_function(_ELEMENTWISE[reduction], sources)
        joined.meta = dict(node.meta)
        source = tensor_value(sources[0])
        if source is not None:
            joined.meta["example_value"] = source
        result = graph.call_method(reduction, (joined,))
        result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    for old in dict.fromkeys(dropped):
        graph.erase_node(old)  # type: ignore[arg-type]


RULE = GraphRule(
    "joined_reductions",
    _joins_truth_values,
    _check,
    _replace,
    summary="two reductions to a truth value run as one",
)
