"""A tensor made on the CPU in every call and copied to a device is made there, or once.

    ``torch.ones(n, n).tril().to("cuda")  ->  torch.ones(n, n, device="cuda").tril()``
    ``torch.tensor([0.2, 0.3]).to(x)      ->  a constant of the graph``

A copy from the CPU waits for the device, and keeps the graph from being a CUDA graph. On the device
where every call on the way gives the same bits there (``host_tensors/exact_ops.py``); otherwise
eager computes the value once, on the CPU, when the program is compiled, and it is uploaded once.
Where neither can be, because of inputs, dynamic sizes, random numbers or size, the copy stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.memory import memories, same_layout
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.host_tensors import (
    rewrite,
)
from fusepass.host_tensors.cpu_chain import nodes_still_read
from fusepass.host_tensors.device_copies import DeviceCopy, device_copy_at
from fusepass.host_tensors.plan import HostTensorPlan, places_of, plan_of
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite
from fusepass.torch_private.fx import graph_constants
from fusepass.torch_private.fx.graphs import tree_flatten, tree_unflatten


def _check(site: RuleSite) -> Reject | Accept | None:
    found = device_copy_at(site.anchor)
    assert found is not None
    if site.options.non_blocking and _may_not_wait(found):
        text = f"{found.operands[0].name} is in pinned memory: its copy does not wait"
        return Accept(Reason.FORCED, text)
    if site.fake_mode is None:
        return Reject(Reason.NOT_CONSTANT, "the graph has no fake tensors to try it on")
    plans: list[HostTensorPlan] = []
    for operand in found.operands or (found.node,):
        plan = plan_of(site, found, operand)
        if isinstance(plan, Reject):
            return plan
        if found.kind == "copy" and not _keeps_layout(site, found, plan):
            return Reject(Reason.STRIDE_MISMATCH, "made there, it would have another layout")
        plans.append(plan)
    site.notes["plans"] = plans
    if any(plan.random_draw for plan in plans):
        return Accept(Reason.RANDOM_OP, "drawn on the device, as host_random permits")
    kept = sum(p.value.numel() * p.value.element_size() for p in plans if p.value is not None)
    if any(plan.value is not None for plan in plans):
        return Accept(Reason.ON_DEVICE, f"uploaded once: a constant of {kept:,} bytes")
    return Accept(Reason.ON_DEVICE, "made on the device, where it has the same bits")


def _replace(site: RuleSite) -> None:
    found, graph = device_copy_at(site.anchor), site.gm.graph
    assert found is not None
    if "plans" not in site.notes:
        site.anchor.kwargs = {**site.anchor.kwargs, "non_blocking": True}
        return
    plans: list[HostTensorPlan] = site.notes["plans"]
    if found.kind in ("copy", "literal"):
        stands_for = _put_result(site, found, plans[0])
        found.node.replace_all_uses_with(stands_for)
        graph.erase_node(found.node)
    else:
        twins = {
            operand: _put_operand(site, found, operand, plan)
            for operand, plan in zip(found.operands, plans, strict=True)
        }
        leaves, spec = tree_flatten((found.node.args, found.node.kwargs))
        leaves = [twins.get(leaf, leaf) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        found.node.args, found.node.kwargs = tree_unflatten(leaves, spec)
    _erase_unneeded(site, found, plans)


def _put_result(site: RuleSite, found: DeviceCopy, plan: HostTensorPlan) -> fx.Node:
    """What stands for the copy: fresh memory where the program could tell."""
    fake, private = tensor_value(found.node), places_of(site).is_private(found.node)
    assert fake is not None
    if plan.replay is None:
        assert plan.value is not None
        node = rewrite.insert_constant(site.gm, plan.value, fake, found.node)
        return node if private else rewrite.insert_copy(site.gm.graph, node, found.node, {})
    node = _put_calls(site, found, plan)
    if found.kind == "literal":
        return node
    made = tensor_value(node)
    if private and made is not None and same_layout(made, fake):
        return node
    return rewrite.insert_copy(site.gm.graph, node, found.node, _layout(found.node))


def _put_operand(
    site: RuleSite, found: DeviceCopy, operand: fx.Node, plan: HostTensorPlan
) -> fx.Node:
    if plan.replay is not None:
        return _put_calls(site, found, plan)
    assert plan.value is not None
    with site.fake_mode, torch.no_grad():
        fake = torch.empty_strided(
            tuple(plan.value.shape), plan.value.stride(), dtype=found.dtype, device=found.device
        )
    return rewrite.insert_constant(site.gm, plan.value, fake, found.node)


def _put_calls(site: RuleSite, found: DeviceCopy, plan: HostTensorPlan) -> fx.Node:
    assert plan.replay is not None
    places = places_of(site)
    shared = not any(key in places.writers for key in memories(plan.chain.nodes))
    return rewrite.insert_calls(site.gm, plan.chain, plan.replay, found.node, shared=shared)


def _erase_unneeded(site: RuleSite, found: DeviceCopy, plans: list[HostTensorPlan]) -> None:
    calls = {node for plan in plans for node in plan.chain.nodes if node is not found.node}
    needed, position = nodes_still_read(calls), places_of(site).position
    for node in sorted(calls - needed, key=position.__getitem__, reverse=True):
        site.gm.graph.erase_node(node)


def _keeps_layout(site: RuleSite, found: DeviceCopy, plan: HostTensorPlan) -> bool:
    """Whether a copy on the device of what is made there is laid out as the copy from the CPU."""
    if plan.replay is None:
        return True
    expected, made = tensor_value(found.node), plan.replay.values[plan.chain.wanted]
    assert expected is not None
    with site.fake_mode, torch.no_grad():
        copied = made.to(**_layout(found.node), dtype=expected.dtype, copy=True)
    return same_layout(copied, expected)


def _layout(node: fx.Node) -> dict[str, Any]:
    return {k: v for k, v in node.kwargs.items() if k == "memory_format"}


def _may_not_wait(found: DeviceCopy) -> bool:
    """Whether the copy is one of a pinned input that can be told not to wait."""
    node = found.node
    if found.kind != "copy" or not graph_constants.is_pinned_input(found.operands[0]):
        return False
    given = any(isinstance(argument, bool) for argument in node.args[1:])
    return op_name(node) in ("to", "cuda") and not given and not node.kwargs.get("non_blocking")


RULE = GraphRule(
    "host_tensor",
    lambda node: device_copy_at(node) is not None,
    _check,
    _replace,
    summary="a tensor made on the CPU is made on the device",
    treatment="device",
)
