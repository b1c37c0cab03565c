"""Compute an operation before a branch again inside the only arm that needs its gradient.

    n = x.norm()                      n = x.norm()
    if n > 1: x = x / n      ->       if n > 1: x = x / x.norm()

When the arm is not taken, eager never runs the backward of the norm; a selection would send it a
zero, and zero times an infinite derivative is NaN. Inside the arm gates keep the gradient off. The
value is that of the first computation to the last bit: the same call on the same operands. What
tests it goes on reading the first, which has no gradient any more.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch
from torch import fx

from fusepass.capture.autograd.gradient_paths import carries_grad
from fusepass.capture.nodes.select_node import (
    ARM,
    BRANCH,
    Branch,
    arm_of,
    branches_of,
    select,
    sites_around,
)
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import Why
from fusepass.graph.cost import roofline
from fusepass.graph.dataflow.effects import is_random, is_state_change, written_nodes
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety import gradient_gates
from fusepass.graph.safety.tensor_kinds import special_tensor_reason
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import call_target, known_equal, size_hint
from fusepass.torch_private.fx.tracing import quiet_fakes


class _RematerializedGraph:
    """What is asked about a graph again and again."""

    def __init__(self, graph: fx.Graph, selects: dict[int, fx.Node]) -> None:
        self.graph = graph
        self.branches = branches_of(selects.values())
        self.history = WriteHistory(graph)
        self.order = self.history.moments
        self.passing = _gradient_path(graph)

    def arm_of(self, node: fx.Node, site: int) -> bool | None:
        """Which arm of a site a node stands in."""
        return arm_of(node, site, self.branches)

    def inside(self, site: int, arm: bool) -> list[fx.Node]:
        """The nodes of an arm."""
        return [node for node in self.graph.nodes if self.arm_of(node, site) is arm]


def rematerialize_in_arms(graph: fx.Graph, lost: dict[int, Why], fake_mode: Any) -> bool:
    """Compute again, in the arms of some sites, operations that only one arm needs gradients of.

    ``lost`` has the sites of a complete graph that would be given back, each with the reason.

    Returns:
        Whether arms gained nodes: ask about their gradients again.

    Raises:
        Refusal: the graph was changed, and has to be given up.
    """
    selects = {n.meta[BRANCH].site: n for n in graph.nodes if BRANCH in n.meta}
    changed = False
    for site in (site for site, (code, _) in lost.items() if code is Reason.NAN_GRAD):
        node = selects.get(site)
        if node is None or node.meta[BRANCH].treatment != "where" or fake_mode is None:
            continue
        for arm in (True, False):
            held = _RematerializedGraph(graph, selects)
            found = _gradients_for_arm_only(held, node, arm)
            changed |= bool(found) and _remake(held, node, arm, found, fake_mode)
    return changed


def _gradient_path(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes through which gradients of the results pass; not what is only tested."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or written_nodes(node) or (node in found and carries_grad(node)):
            found.update(node.all_input_nodes)
    return frozenset(node for node in found if carries_grad(node))


def _gradients_for_arm_only(
    held: _RematerializedGraph, branch: fx.Node, arm: bool
) -> list[fx.Node]:
    """Calls in front of a branch that pass gradients on to one of its arms only, in order."""
    site = branch.meta[BRANCH].site
    around = set(sites_around(branch, held.branches)) if ARM in branch.meta else set()
    found: set[fx.Node] = set()
    for node in reversed(held.graph.nodes):
        if held.order[node] >= held.order[branch] or not _can_be_rematerialized(held, node):
            continue
        if held.arm_of(node, site) is not None or set(sites_around(node, held.branches)) - around:
            continue  # in an arm, of an earlier branch perhaps
        users = [u for u in node.users if u in held.passing or u.op == "output"]
        elsewhere = branch.args[2 if arm else 1]
        if users and all(
            u in found or held.arm_of(u, site) is arm or (u is branch and node not in elsewhere)  # type: ignore[operator]
            for u in users
        ):
            found.add(node)
    return [node for node in held.graph.nodes if node in found]


def _can_be_rematerialized(held: _RematerializedGraph, node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method") or not carries_grad(node):
        return False
    if node.target is select or op_name(node) is None or is_random(node):
        return False
    if is_state_change(node) or written_nodes(node) or special_tensor_reason(node) is not None:
        return False
    if any("example_value" not in source.meta for source in node.all_input_nodes):
        return False  # the body of a function with a backward of its own
    if any(source.target is select for source in node.all_input_nodes):
        return False
    touched = [node, *node.all_input_nodes]
    return not any(held.history.is_written(one, 0, sys.maxsize) for one in touched)


def _remake(
    held: _RematerializedGraph, branch: fx.Node, arm: bool, found: list[fx.Node], fake_mode: Any
) -> bool:
    """Copy calls to the beginning of an arm, and let the arm use the copies."""
    facts: Branch = branch.meta[BRANCH]
    inside = held.inside(facts.site, arm)
    start = inside[0] if inside else branch
    tested = tensor_value(branch.args[0])
    if tested is None or not _same_order(held, facts.site, arm, found, start):
        return False
    if roofline.microseconds(found, training=True) > roofline.host_round_trip(tested.device):
        return False
    made: dict[fx.Node, fx.Node] = {}
    with held.graph.inserting_before(start):
        for node in found:
            made[node] = _copy(node, made, (facts.site, arm), fake_mode)
    for user in inside:
        if carries_grad(user):
            user.args = fx.map_arg(user.args, lambda n: made.get(n, n))
            user.kwargs = fx.map_arg(user.kwargs, lambda n: made.get(n, n))
    position = 1 if arm else 2  # an arm may hand such a value on as it is
    results: Any = branch.args[position]
    branch.update_arg(position, tuple(made.get(n, n) for n in results))
    arms = {side: held.inside(facts.site, side) for side in (True, False)}
    arms[arm] = [*made.values(), *[n for n in arms[arm] if n not in made.values()]]
    outputs = [n for n in (*branch.args[1], *branch.args[2]) if n in {*arms[True], *arms[False]}]  # type: ignore[misc]
    if gradient_gates.changes_output_strides(arms, outputs, fake_mode):
        text = "gating the operands of an arm for training would change its strides"
        raise Refusal(Reason.STRIDE_MISMATCH, text)
    branch.meta[BRANCH] = dataclasses.replace(facts, gated=True)
    return True


def _copy(
    node: fx.Node, made: dict[fx.Node, fx.Node], arm: tuple[int, bool], fake_mode: Any
) -> fx.Node:
    copied = node.graph.node_copy(node, lambda n: made.get(n, n))
    copied.meta = {**node.meta, ARM: arm}
    args, kwargs = fx.map_arg((copied.args, copied.kwargs), lambda n: n.meta["example_value"])
    with fake_mode, torch.enable_grad(), quiet_fakes():
        copied.meta["example_value"] = call_target(node.target, args, kwargs)
    return copied


def _same_order(
    held: _RematerializedGraph, site: int, arm: bool, found: list[fx.Node], start: fx.Node
) -> bool:
    """Whether the copies compute the same, and gradients add up in the same order.

    Autograd runs the backward of what was computed last first. So between a call and its copy
    nothing else may pass gradients on to the same operand.
    """
    begins = held.order[start]
    first = held.order[found[0]]
    if any(is_state_change(n) and first < i < begins for n, i in held.order.items()):
        return False  # autocast or grad mode are not what they were
    for node in found:
        for operand in node.all_input_nodes:
            value = tensor_value(operand)
            if operand in found or value is None or not value.requires_grad:
                continue
            if not _dense(value):
                return False  # a gate would lay it out anew, and sums run in another order
            for user in operand.users:
                between = held.order[node] < held.order[user] < begins
                if not between or user in found or user not in held.passing:
                    continue
                if held.arm_of(user, site) is not (not arm):  # else a zero is added
                    return False
    return True


def _dense(value: torch.Tensor) -> bool:
    """Whether a copy has the strides of the tensor itself."""
    expected = 1
    pairs = zip(value.stride(), value.shape, strict=True)
    for stride, size in sorted(pairs, key=lambda pair: size_hint(pair[0]) or 0):
        if known_equal(size, 1):
            continue
        if not known_equal(stride, expected):
            return False
        expected = expected * size
    return True
