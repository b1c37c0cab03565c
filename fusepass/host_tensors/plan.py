"""How a CPU tensor that a graph makes in every call gets to a device, or why it is copied."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.host_tensors import host_constant, replay, rewrite
from fusepass.host_tensors.cpu_chain import CpuChain, GraphPositions, NotInGraph, chain_of
from fusepass.host_tensors.device_copies import DeviceCopy, device_copy_at
from fusepass.host_tensors.exact_ops import Inexact
from fusepass.host_tensors.host_constant import LIMIT, NotConstant, TooLarge
from fusepass.host_tensors.replay import DeviceReplay
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import Reject, RuleSite

_TOTAL = 4 * LIMIT  # bytes of all constants of a graph
_NESTED = "the body of another call can hold no constants"


@dataclass(frozen=True)
class HostTensorPlan:
    """How one CPU tensor gets to a device.

    Attributes:
        chain: what it is computed from.
        replay: the calls that make it there; None for a constant.
        value: the constant, on the CPU.
        random_draw: whether it holds random numbers.
    """

    chain: CpuChain
    replay: DeviceReplay | None = None
    value: torch.Tensor | None = None
    random_draw: bool = False


def plan_of(site: RuleSite, crossing: DeviceCopy, operand: fx.Node) -> HostTensorPlan | Reject:
    """The plan for one operand of a crossing, or the reason to leave it."""
    if crossing.kind == "literal":
        return _plan_of_literal(site, crossing)
    try:
        chain = chain_of(operand, crossing.node, places_of(site))
    except NotInGraph as reason:
        text = f"{reason}; move that to {crossing.device} before the call"
        return Reject(Reason.NOT_CONSTANT, text, reason.node)
    draws = [node for node in chain.nodes if host_constant.is_draw(node)]
    if draws:
        reject = _reject_draws(site, crossing, chain, draws[0])
        if reject is not None:
            return reject
    try:
        replay.check_exact(chain, crossing.dtype)
        made = replay.plan_replay(chain, crossing.device, site.fake_mode)
    except Inexact as reason:
        return _constant(site, chain, str(reason))
    if not made.calls:
        return _constant(site, chain, "it is a literal")
    if made.literals and site.nested:
        return Reject(Reason.NOT_CONSTANT, f"it depends on a literal, and {_NESTED}")
    return HostTensorPlan(chain, made, random_draw=bool(draws))


def places_of(site: RuleSite) -> GraphPositions:
    """Where the nodes of the site's graph stood before the rule changed anything."""
    if "places" not in site.shared:
        site.shared["places"] = GraphPositions(site.gm.graph)
    places: GraphPositions = site.shared["places"]
    return places


def _plan_of_literal(site: RuleSite, crossing: DeviceCopy) -> HostTensorPlan | Reject:
    node, value = crossing.node, tensor_value(crossing.node)
    if value is None or value.requires_grad:
        return Reject(Reason.NOT_CONSTANT, "it requires grad")
    chain = CpuChain(node, (node,), frozenset(), frozenset(), frozenset())
    if replay.is_one_number(node):
        try:
            replay.check_exact(chain, crossing.dtype)
            return HostTensorPlan(chain, replay.plan_replay(chain, crossing.device, site.fake_mode))
        except Inexact:
            pass
    if not host_constant.is_literal(node):
        return Reject(Reason.NOT_CONSTANT, "it holds numbers that differ from call to call")
    if site.nested:
        return Reject(Reason.NOT_CONSTANT, f"it is a literal, and {_NESTED}")
    try:
        return HostTensorPlan(chain, value=host_constant.literal_value(node))
    except NotConstant as reason:
        return Reject(Reason.NOT_CONSTANT, str(reason))


def _constant(site: RuleSite, chain: CpuChain, why: str) -> HostTensorPlan | Reject:
    if site.nested:
        return Reject(Reason.INEXACT, f"{why}, and {_NESTED}")
    try:
        if rewrite.constant_bytes(site.gm.graph) > _TOTAL - LIMIT:
            raise TooLarge(f"this graph has {(_TOTAL - LIMIT) >> 20} MiB of constants already")
        return HostTensorPlan(chain, value=host_constant.value_of(chain))
    except TooLarge as size:
        return Reject(Reason.COST, f"{why}; not kept as a constant: {size}")
    except NotConstant as reason:
        return Reject(Reason.INEXACT, f"{why}; not kept as a constant: {reason}")


def _reject_draws(
    site: RuleSite, crossing: DeviceCopy, chain: CpuChain, draw: fx.Node
) -> Reject | None:
    name = op_name(draw)
    if not site.options.host_random:
        text = f"{name} draws on the CPU; host_random permits other numbers, drawn on the device"
        return Reject(Reason.RANDOM_OP, text, draw)
    inside = {*chain.nodes, crossing.node}
    others = {user for node in chain.nodes for user in node.users} - inside
    for other in others:
        copied = device_copy_at(other)
        if chain.written or copied is None or copied.kind != "copy":
            return Reject(Reason.RANDOM_OP, f"what {name} draws is read elsewhere too", draw)
        if copied.device != crossing.device:
            return Reject(Reason.RANDOM_OP, f"what {name} draws is copied to two devices", draw)
    return None
