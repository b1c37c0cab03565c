"""Many small pointwise kernels that do not depend on each other, in one launch.

    y1 = f(a1, b1); y2 = f(a2, b2); …; yn = g(an)  ->  fusepass::horizontal([a1, b1, a2, …], [f, …])
    a1.copy_(f(a1, b1)); a2.copy_(f(a2, b2)); …  ->  fusepass::horizontal_into([a1, …], …)

Both sides compute the same results from the same operands: what one member computes no other reads,
and what one overwrites it alone reads, element by element, before it is written. Inductor gives
each a kernel of its own (or, asked to combine kernels, one for eight), and a launch takes longer
than the work of a small one. Updates of lists of tensors are such programs, and so are the weights
that other rules scale.

Only what would be a kernel of its own is taken: operands come from outside the graph, or from calls
that Inductor makes as they are, and results go there or overwrite inputs. What such a group holds
from its beginning to its end is bounded as ``max_saved_bytes`` bounds what an arm keeps (and what
it keeps between calls by ``kernels/codegen/workspace.py``).
"""

from __future__ import annotations

import operator
from functools import partial

import torch
from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.pointwise.groups import (
    Copies,
    Member,
    MemberGroups,
    copy_target,
    groups_of,
    program_of,
)
from fusepass.graph.ops.op_names import op_name
from fusepass.graph.safety.saved_for_backward import saved_bytes_limit
from fusepass.kernels.pointwise import horizontal as kernel
from fusepass.kernels.pointwise.horizontal_launch import prepare
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.snapshot import inherit_meta
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite
from fusepass.torch_private.inductor.passes import put_in_order
from fusepass.tune import INDUCTOR, REFERENCE
from fusepass.tune.device.peaks import memory_of_device

_OPERATOR = kernel.OPERATOR


def _is_output(node: fx.Node) -> bool:
    return node.op == "output"


def _check(site: RuleSite) -> Accept | Reject:
    candidate = site.options.candidate
    values = [node.meta.get("val") for node in site.gm.graph.nodes]
    devices = {one.device for one in values if isinstance(one, Tensor)}
    memory = min(map(memory_of_device, devices), default=0)
    groups = groups_of(site.gm.graph, saved_bytes_limit(site.options, memory))
    if candidate != REFERENCE:
        groups = groups.where(lambda group: _device(group).type == "cuda")
    count = sum(map(len, groups.all))
    if not count:
        return Reject(Reason.VARIANT, "no independent pointwise kernels", site.anchor)
    if candidate == INDUCTOR:
        return Reject(Reason.FORCED, f"options ask for {INDUCTOR}", site.anchor)
    nowhere = kernel_gate.gate_reason(_device(groups.all[0]), site.options, site.anchor)
    if nowhere is not None:
        return nowhere
    if candidate != REFERENCE:
        obstacle = kernel_gate.compile_check("horizontal", partial(_prepare, groups), site.anchor)
        if obstacle is not None:
            return obstacle
    site.notes["groups"] = groups
    text = f"{count} pointwise kernels that do not depend on each other, in {len(groups.all)}"
    return Accept(Reason.COST, text)


def _prepare(groups: MemberGroups) -> None:
    for group in groups.all:
        prepare([node.meta["val"] for node in _operands(group)], program_of(group).text())


def _device(group: list[Member]) -> torch.device:
    value: Tensor = group[0].roots[0].meta["val"]
    return value.device


def _operands(group: list[Member]) -> list[fx.Node]:
    return [operand for one in group for operand in one.operands]


def _replace(site: RuleSite) -> None:
    kernel.install_lowering()
    graph, groups = site.gm.graph, site.notes["groups"]
    for group in groups.read:
        _write_group(graph, group)
    put_in_order(graph)
    if groups.overwriting:
        _write_overwriting(graph, groups.overwriting, groups.copies)
    graph.eliminate_dead_code()


def _write_group(graph: fx.Graph, group: list[Member]) -> None:
    """Put one call in place of the roots; nodes may stand in front of what they read for now."""
    operands, program = _operands(group), program_of(group).text()
    roots = [root for one in group for root in one.roots]
    with graph.inserting_before(roots[-1]):
        call = graph.call_function(_OPERATOR, (operands, program))
        call.meta["val"] = _OPERATOR([node.meta["val"] for node in operands], program)
        inherit_meta(call, roots[-1])
        for position, root in enumerate(roots):
            item = graph.call_function(operator.getitem, (call, position))
            item.meta["val"] = call.meta["val"][position]
            root.replace_all_uses_with(item)


def _write_overwriting(graph: fx.Graph, group: list[Member], copies: Copies) -> None:
    """Put one call in place of copies into inputs, in front of all those at the graph's end."""
    done = [copies[root] for one in group for root in one.roots]
    first = next(node for node in graph.nodes if op_name(node) == "copy_")
    with graph.inserting_before(first):
        results = [copy_target(copy) for copy in done]
        call = graph.call_function(
            kernel.INTO, (results, _operands(group), program_of(group).text())
        )
        call.meta["val"] = None
        inherit_meta(call, first)
    for copy in done:
        copy.replace_all_uses_with(copy_target(copy))  # at the end of the graph
        graph.erase_node(copy)


RULE = GraphRule("horizontal", _is_output, _check, _replace)
