"""Nested branches with one arm in common, as ``and`` and ``or`` leave them, become one branch.

    ``cond(a, f, cond(b, f, g))  ->  cond(a | b, f, g)``
    ``cond(a, cond(b, f, g), g)  ->  cond(a & b, f, g)``
    ``cond(a, g, cond(b, f, g))  ->  cond(~a & b, f, g)``
    ``cond(a, cond(b, f, g), f)  ->  cond(~a | b, f, g)``

By the truth table of the connectives, whenever evaluating ``b`` has no effect and cannot fail,
which capture has made sure of for everything that stands in an arm. Python compiles
``if a or b: f`` into two jumps, so ``f`` is traced twice; this gives the copy back.
"""

from __future__ import annotations

import dataclasses
import operator

import torch
from torch import fx

from fusepass.capture.select import ARM, BRANCH, Branch, arm_of, select
from fusepass.graph.canonical import tensor_value
from fusepass.graph.effects import written_nodes
from fusepass.patterns.branch_to_where import known_branches
from fusepass.report.decision import Reason
from fusepass.rewrite.graph_rule import GraphRule, Site
from fusepass.rewrite.reject import Reject


def _is_branch(node: fx.Node) -> bool:
    return node.target is select and BRANCH in node.meta


def _check(site: Site) -> Reject | None:
    if _plan(site.anchor, site.gm.graph) is None:
        return Reject(Reason.FLAVOUR, "no nested branch shares an arm with this one", site.anchor)
    return None


def _replace(site: Site) -> None:
    plan = _plan(site.anchor, site.gm.graph)
    if plan is None:
        return
    outer, inner, inner_in, shared = plan
    graph = site.gm.graph
    branch: Branch = outer.meta[BRANCH]
    branches = known_branches(graph)
    doubled = [n for n in graph.nodes if arm_of(n, branch.site, branches) is not inner_in]
    doubled = [n for n in doubled if arm_of(n, branch.site, branches) is not None]
    first, second = outer.args[0], inner.args[0]
    with graph.inserting_before(_where_both_exist(graph, first, second)):  # type: ignore[arg-type]
        predicate = _combined(graph, first, second, inner_in, shared, branch.outer)  # type: ignore[arg-type]
    inner.update_arg(0, predicate)
    for user in list(outer.users):
        kept = next(u for u in inner.users if u.args[1] == user.args[1])
        user.replace_all_uses_with(kept)
        graph.erase_node(user)
    graph.erase_node(outer)
    for node in reversed(doubled):
        if not node.users:
            graph.erase_node(node)
    _move_out(graph, branch, inner)


def _plan(outer: fx.Node, graph: fx.Graph) -> tuple[fx.Node, fx.Node, bool, bool] | None:
    """``(outer, inner, arm of outer that holds inner, arm of inner that outer repeats)``."""
    if not outer.users or not _only_select(outer, graph):
        return None
    for inner_in in (True, False):
        results = outer.args[1] if inner_in else outer.args[2]
        repeated = outer.args[2] if inner_in else outer.args[1]
        inner = _whole_select(results)  # type: ignore[arg-type]
        if inner is None or not _inside(inner, outer, inner_in) or not _only_select(inner, graph):
            continue
        for shared in (True, False):
            twin = inner.args[1] if shared else inner.args[2]
            if _same_values(repeated, twin, outer, inner_in, graph):  # type: ignore[arg-type]
                return outer, inner, inner_in, shared
    return None


def _only_select(node: fx.Node, graph: fx.Graph) -> bool:
    """Whether no other select belongs to the same branch (numbers that differ make some)."""
    site = node.meta[BRANCH].site
    return not any(
        n is not node and BRANCH in n.meta and n.meta[BRANCH].site == site for n in graph.nodes
    )


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
    outer: fx.Node,
    inner_in: bool,
    graph: fx.Graph,
) -> bool:
    """Whether two tuples of values are computed alike from values outside the outer branch."""
    site = outer.meta[BRANCH].site
    branches = known_branches(graph)
    in_arms = (n for n in graph.nodes if arm_of(n, site, branches) is not None)
    if any(written_nodes(n) for n in in_arms):  # a value in place is more than its own node says
        return False
    memo: dict[tuple[fx.Node, fx.Node], bool] = {}

    def same(a: object, b: object) -> bool:
        if isinstance(a, fx.Node) and isinstance(b, fx.Node):
            if a is b:
                return True
            if (a, b) not in memo:
                memo[a, b] = (
                    arm_of(a, site, branches) is (not inner_in)
                    and arm_of(b, site, branches) is inner_in
                    and a.op == b.op
                    and a.op in ("call_function", "call_method")
                    and a.target == b.target
                    and _same_kind(a, b)
                    and same(a.args, b.args)
                    and same(a.kwargs, b.kwargs)
                )
            return memo[a, b]
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
            return len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
        if isinstance(a, slice) and isinstance(b, slice):
            return all(map(same, (a.start, a.stop, a.step), (b.start, b.stop, b.step)))
        return type(a) is type(b) and repr(a) == repr(b)

    return len(left) == len(right) and all(map(same, left, right))


def _same_kind(a: fx.Node, b: fx.Node) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None:
        return x is y
    return (x.dtype, x.requires_grad) == (y.dtype, y.requires_grad)


def _combined(
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


def _where_both_exist(graph: fx.Graph, a: fx.Node, b: fx.Node) -> fx.Node:
    """The first place after both predicates: gates in the arms, which come next, will read it."""
    missing = {a, b}
    for node in graph.nodes:
        if not missing and node.op != "placeholder":
            place: fx.Node = node
            return place
        missing.discard(node)
    raise ValueError("a predicate is not in the graph")


def _move_out(graph: fx.Graph, branch: Branch, inner: fx.Node) -> None:
    """What stood in the outer arm now stands where the outer branch stood."""
    kept: Branch = inner.meta[BRANCH]
    merged = dataclasses.replace(kept, outer=branch.outer, gated=kept.gated or branch.gated)
    inner.meta[BRANCH] = merged
    for node in graph.nodes:
        tag = node.meta.get(ARM)
        if tag is not None and tag[0] == branch.site:
            if branch.outer is None:
                del node.meta[ARM]
            else:
                node.meta[ARM] = branch.outer
        other = node.meta.get(BRANCH)
        if other is not None and other.outer is not None and other.outer[0] == branch.site:
            node.meta[BRANCH] = dataclasses.replace(other, outer=branch.outer)
    known_branches(graph)


RULE = GraphRule("short_circuit", _is_branch, _check, _replace, settled_by_capture=True)
