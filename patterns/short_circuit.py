"""Nested branches with one arm in common, as ``and`` and ``or`` leave them, become one branch.

    ``cond(a, f, cond(b, f, g))  ->  cond(a | b, f, g)``
    ``cond(a, cond(b, f, g), g)  ->  cond(a & b, f, g)``
    ``cond(a, g, cond(b, f, g))  ->  cond(~a & b, f, g)``
    ``cond(a, cond(b, f, g), f)  ->  cond(~a | b, f, g)``

By the truth table of the connectives, whenever what stands in front of the inner branch, ``b``
among it, draws no random numbers and cannot fail: it now always runs. Capture has made sure of
that where both arms run, not where only one does. Python compiles ``if a or b: f`` into two jumps,
so ``f`` is traced twice; this gives the copy back.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.select_node import ARM, BRANCH, Branch, arm_of, select
from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.dataflow.value_numbering import node_pairs
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.safety.totality import partial_reason
from fusepass.patterns.branch_to_where import erase_select, known_branches
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import GraphRule, Reject, RuleSite


def _is_branch(node: fx.Node) -> bool:
    return node.target is select and BRANCH in node.meta


@dataclass(frozen=True)
class _MergedBranches:
    """Two branches that become one.

    ``inner_in`` is the arm of ``outer`` that holds ``inner``; ``shared`` the arm of ``inner`` that
    the other arm of ``outer`` repeats; ``arms`` has every node in an arm of ``outer``, and which;
    ``selects`` are those of the whole graph.
    """

    outer: fx.Node
    inner: fx.Node
    inner_in: bool
    shared: bool
    arms: dict[fx.Node, bool]
    selects: list[fx.Node]


def _check(site: RuleSite) -> Reject | None:
    plan = site.notes["plan"] = _plan(site.anchor, site.gm.graph)
    if plan is None:
        return Reject(Reason.VARIANT, "no nested branch shares an arm with this one", site.anchor)
    return None


def _replace(site: RuleSite) -> None:
    plan: _MergedBranches = site.notes["plan"]
    outer, inner, graph = plan.outer, plan.inner, site.gm.graph
    branch: Branch = outer.meta[BRANCH]
    first: Any = outer.args[0]
    second: Any = inner.args[0]
    with graph.inserting_before(_where_both_exist(inner, first, second)):
        predicate = _combined_predicate(
            graph, first, second, plan.inner_in, plan.shared, branch.outer
        )
    inner.update_arg(0, predicate)
    for user in list(outer.users):
        kept = next(u for u in inner.users if u.args[1] == user.args[1])
        user.replace_all_uses_with(kept)
        graph.erase_node(user)
    erase_select(outer)
    for node, arm in reversed(plan.arms.items()):
        if arm is not plan.inner_in and not node.users:
            graph.erase_node(node)
    _move_out(graph, branch, plan)


def _plan(outer: fx.Node, graph: fx.Graph) -> _MergedBranches | None:
    if not outer.users:
        return None
    for inner_in in (True, False):
        results = outer.args[1] if inner_in else outer.args[2]
        repeated = outer.args[2] if inner_in else outer.args[1]
        inner = _whole_select(results)  # type: ignore[arg-type]
        if inner is None or not _inside(inner, outer, inner_in):
            continue
        shared = _shared_arm(outer, inner, inner_in, repeated, graph)  # type: ignore[arg-type]
        if shared is None:  # nearly always, which is found out without a look at the whole graph
            continue
        arms, selects = _arms(outer, graph)
        sites = [node.meta[BRANCH].site for node in selects]
        if any(sites.count(node.meta[BRANCH].site) > 1 for node in (outer, inner)):
            continue  # numbers that differ between two arms make a select of their own
        if any(map(written_nodes, arms)):  # a value in place is more than its own node says
            return None
        plan = _MergedBranches(outer, inner, inner_in, shared, arms, selects)
        return plan if _may_move(plan, graph) else None
    return None


def _shared_arm(
    outer: fx.Node,
    inner: fx.Node,
    inner_in: bool,
    repeated: tuple[fx.Node, ...],
    graph: fx.Graph,
) -> bool | None:
    """Which arm of the inner branch the other arm of the outer one repeats."""
    site, branches = outer.meta[BRANCH].site, known_branches(graph)

    def stands_in(node: fx.Node) -> bool | None:
        return arm_of(node, site, branches) if ARM in node.meta else None

    for shared in (True, False):
        twin: Any = inner.args[1] if shared else inner.args[2]
        if _same_values(repeated, twin, inner_in, stands_in):
            return shared
    return None


def _may_move(plan: _MergedBranches, graph: fx.Graph) -> bool:
    """Whether nothing is drawn or can fail that would now happen always, or no more."""
    site, branches = plan.inner.meta[BRANCH].site, known_branches(graph)
    in_front: list[fx.Node] = []
    repeated: list[fx.Node] = []
    twin: list[fx.Node] = []
    for node, arm in plan.arms.items():
        if node.target is select or not (is_random(node) or partial_reason(node) is not None):
            continue
        inner_arm = arm_of(node, site, branches)
        if arm is not plan.inner_in:
            repeated.append(node)
        elif inner_arm is None:
            in_front.append(node)
        elif inner_arm is plan.shared:
            twin.append(node)
    return not in_front and [n.target for n in repeated] == [n.target for n in twin]


def _arms(outer: fx.Node, graph: fx.Graph) -> tuple[dict[fx.Node, bool], list[fx.Node]]:
    """Which arm of a branch each node inside it is in; and every select of the graph."""
    site, branches = outer.meta[BRANCH].site, known_branches(graph)
    selects: list[fx.Node] = []
    arms: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        if BRANCH in node.meta:
            selects.append(node)
        if ARM in node.meta:
            arm = arm_of(node, site, branches)
            if arm is not None:
                arms[node] = arm
    return arms, selects


def _whole_select(results: tuple[fx.Node, ...]) -> fx.Node | None:
    """The select whose results, all and in order, these are."""
    if not results or any(r.target is not operator.getitem for r in results):
        return None
    sources = {r.args[0] for r in results}
    if len(sources) != 1:
        return None
    source = sources.pop()
    if not isinstance(source, fx.Node) or not _is_branch(source):
        return None
    width = len(source.args[1])  # type: ignore[arg-type]
    in_order = [r.args[1] for r in results] == list(range(width))
    only_here = all(len(r.users) == 1 for r in results)
    return source if in_order and only_here else None


def _inside(inner: fx.Node, outer: fx.Node, arm: bool) -> bool:
    a, b = outer.meta[BRANCH], inner.meta[BRANCH]
    return bool(b.outer == (a.site, arm) and a.treatment == b.treatment)


def _same_values(
    left: tuple[fx.Node, ...],
    right: tuple[fx.Node, ...],
    inner_in: bool,
    stands_in: Callable[[fx.Node], bool | None],
) -> bool:
    """Whether two tuples of values are computed alike from values outside the outer branch."""
    pairs = node_pairs(left, right)
    met: set[tuple[fx.Node, fx.Node]] = set()
    while pairs:
        a, b = pairs.pop()
        if a is b or (a, b) in met:
            continue
        met.add((a, b))
        alike = (
            stands_in(a) is (not inner_in)
            and stands_in(b) is inner_in
            and a.op == b.op
            and a.op in ("call_function", "call_method")
            and a.target == b.target
            and _same_kind(a, b)
        )
        operands = node_pairs((a.args, a.kwargs), (b.args, b.kwargs)) if alike else None
        if operands is None:
            return False
        pairs += operands
    return pairs is not None


def _same_kind(a: fx.Node, b: fx.Node) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None:
        return x is y
    return (x.dtype, x.requires_grad) == (y.dtype, y.requires_grad)


def _combined_predicate(
    graph: fx.Graph,
    outer: fx.Node,
    inner: fx.Node,
    inner_in: bool,
    shared: bool,
    arm: tuple[int, bool] | None,
) -> fx.Node:
    """The one predicate, in the arm the outer branch stands in."""
    joined = torch.logical_or if shared else torch.logical_and
    first = outer
    if inner_in is shared:  # the shared arm is the one the inner branch takes when it agrees
        first = graph.call_function(torch.logical_not, (outer,))
    combined = graph.call_function(joined, (first, inner))
    for node in {first, combined} - {outer}:
        node.meta["example_value"] = inner.meta["example_value"]
        node.meta["stack_trace"] = inner.meta.get("stack_trace", "")
        if arm is not None:
            node.meta[ARM] = arm
    return combined


def _where_both_exist(inner: fx.Node, a: fx.Node, b: fx.Node) -> fx.Node:
    """The first place after both predicates: gates in the arms, which come next, will read it."""
    node = inner.prev
    while node is not a and node is not b:  # both stand before; the later one is met first
        if node.op == "root":
            raise ValueError("a predicate is not in the graph before its branch")
        node = node.prev
    place: fx.Node = node.next
    while place.op == "placeholder":
        place = place.next
    return place


def _move_out(graph: fx.Graph, branch: Branch, plan: _MergedBranches) -> None:
    """What stood in the outer arm now stands where the outer branch stood."""
    inner = plan.inner
    kept: Branch = inner.meta[BRANCH]
    merged = dataclasses.replace(kept, outer=branch.outer, gated=kept.gated or branch.gated)
    inner.meta[BRANCH] = merged
    known = known_branches(graph)
    for node in plan.arms:
        tag = node.meta.get(ARM)
        if tag is not None and tag[0] == branch.site:
            if branch.outer is None:
                del node.meta[ARM]
            else:
                node.meta[ARM] = branch.outer
    for node in plan.selects:
        other: Branch = node.meta[BRANCH]
        if other.outer is not None and other.outer[0] == branch.site:
            node.meta[BRANCH] = dataclasses.replace(other, outer=branch.outer)
            known[other.site] = node.meta[BRANCH]


RULE = GraphRule("short_circuit", _is_branch, _check, _replace, settled_by_capture=True)
