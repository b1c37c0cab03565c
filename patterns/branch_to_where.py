"""A branch both of whose arms are pure and total becomes a selection.

    ``cond(p, f, g)(x)  ->  where(p, f(x), g(x))``

Both sides are equal whenever ``f`` and ``g`` have no effects and cannot fail, because then running
the arm that was not taken changes nothing but time. Under autograd the untaken arm receives a zero
gradient, and zero times an infinite derivative is NaN; so each differentiable operand of an arm is
gated, ``x -> where(p, x, x.detach())`` (``p`` negated for the other arm), whose backward passes
nothing when the arm was not taken.

Acts on the select nodes that capture leaves, where both arms already stand in the graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from fusepass.capture.nodes.select_node import ARM, BRANCH, Branch, arm_of, select, without_select
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.safety import gradient_gates
from fusepass.rewrite.rule import GraphRule, RuleSite
from fusepass.torch_private.fx.graphs import tree_flatten, tree_unflatten


def treated_as(treatment: str) -> Callable[[fx.Node], bool]:
    """Whether a node is the select of a branch for which capture has chosen a treatment."""
    return lambda node: node.target is select and node.meta[BRANCH].treatment == treatment


def settled(site: RuleSite) -> None:
    """Go on: capture settled legality and cost while Dynamo could still restart."""


def _replace(site: RuleSite) -> None:
    node = site.anchor
    branch: Branch = node.meta[BRANCH]
    predicate, taken, other = node.args
    if branch.gated:
        _gate(site, predicate, branch)  # type: ignore[arg-type]
    results = []
    with site.gm.graph.inserting_before(node):
        for a, b, value in zip(taken, other, node.meta["example_value"], strict=True):  # type: ignore[arg-type]
            result = site.gm.graph.call_function(torch.where, (predicate, a, b))
            _describe(result, node, value)
            results.append(result)
    for user in list(node.users):  # getitem nodes
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        site.gm.graph.erase_node(user)
    erase_select(node)


def _gate(site: RuleSite, predicate: fx.Node, branch: Branch) -> None:
    graph = site.gm.graph
    branches = known_branches(graph)
    for arm in (True, False):
        inside = [n for n in graph.nodes if arm_of(n, branch.site, branches) is arm]
        for user, operand in gradient_gates.gated_uses(inside):
            if site.fake_mode is not None:
                _gate_use(site, predicate, user, operand, arm)


def _gate_use(
    site: RuleSite, predicate: fx.Node, user: fx.Node, operand: fx.Node, arm: bool
) -> None:
    """Gate each occurrence of ``operand`` in ``user`` on its own.

    Autograd runs the backward of what was recorded last first, so gates are recorded from the last
    occurrence to the first: gradients then add up in the order eager adds them.
    """
    value = tensor_value(operand)
    if value is None:
        return
    with site.fake_mode, torch.enable_grad():
        held_value = value.detach()
        pair_value = (value, held_value) if arm else (held_value, value)
        fake = torch.where(predicate.meta["example_value"], *pair_value)
    graph = site.gm.graph
    leaves, spec = tree_flatten((user.args, user.kwargs))
    with graph.inserting_before(user):
        for position in reversed(range(len(leaves))):
            if leaves[position] is not operand:
                continue
            held = graph.call_method("detach", (operand,))
            pair = (operand, held) if arm else (held, operand)
            leaves[position] = graph.call_function(torch.where, (predicate, *pair))
            _describe(held, user, held_value)
            _describe(leaves[position], user, fake)
    user.args, user.kwargs = tree_unflatten(leaves, spec)


def known_branches(graph: fx.Graph) -> dict[int, Branch]:
    """Every branch of the graph, also those already rewritten (their arms keep their tags)."""
    known = without_select(graph)
    known |= {n.meta[BRANCH].site: n.meta[BRANCH] for n in graph.nodes if BRANCH in n.meta}
    return known


def erase_select(node: fx.Node) -> None:
    """Erase the select node of a branch; what stands in its arms is still known to."""
    branch: Branch = node.meta[BRANCH]
    without_select(node.graph)[branch.site] = branch
    node.graph.erase_node(node)


def _describe(node: fx.Node, like: fx.Node, value: torch.Tensor) -> None:
    node.meta["example_value"] = value
    for key in ("stack_trace", "nn_module_stack", "source_fn_stack", ARM):
        if key in like.meta:
            node.meta[key] = like.meta[key]


RULE = GraphRule("branch_to_where", treated_as("where"), settled, _replace, settled_by_capture=True)
