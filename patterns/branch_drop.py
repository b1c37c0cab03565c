"""A guard is dropped when the arm behind it does nothing where the guard would have kept it out.

    ``if mask.any(): x[mask] = v``  ->  ``x[mask] = v``

A store through a mask of which no element is true stores nothing; ``where(mask, v, x)`` and
``masked_fill(x, mask, v)`` are ``x`` then. So under the assumption that the predicate fails, the
arm's values are shown to be those of the other arm, and the arm may run always: there is no
predicate to compute, read or select by. What a failed predicate says about masks follows from the
reductions it is made of (``any``, ``all``, ``sum() > 0``, through ``not``, ``and``, ``or``).

Gradients agree as well: where no element is true the backward of a masked store hands everything
on. Arms that need gating keep their selection (a source could send NaN through its zero gradient).
"""

from __future__ import annotations

import dataclasses

from torch import fx

from fusepass import torch_private
from fusepass.capture.select import BRANCH, Branch, arm_of, select
from fusepass.graph import mask_facts, same_value
from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.effects import is_random, written_nodes
from fusepass.graph.mask_facts import MaskFacts, facts_of
from fusepass.graph.memory import memories, memory_of
from fusepass.graph.totality import partial_reason
from fusepass.patterns.branch_to_where import known_branches
from fusepass.report.decision import Reason
from fusepass.rewrite.graph_rule import GraphRule, Site
from fusepass.rewrite.reject import Reject


def _is_where_site(node: fx.Node) -> bool:
    return node.target is select and node.meta[BRANCH].treatment == "where"


def _check(site: Site) -> Reject | None:
    if site.anchor.meta[BRANCH].gated or _acting_arm(site.anchor) is None:
        return Reject(Reason.FLAVOUR, "an arm does more than store through a mask", site.anchor)
    return None


def _replace(site: Site) -> None:
    node, graph = site.anchor, site.gm.graph
    acting = _acting_arm(node)
    if acting is None:
        return
    predicate = node.args[0]
    branches = known_branches(graph)
    kept = node.args[1] if acting else node.args[2]
    for user in list(node.users):
        user.replace_all_uses_with(kept[user.args[1]])  # type: ignore[index]
        graph.erase_node(user)
    graph.erase_node(node)
    branch: Branch = node.meta[BRANCH]
    idle = [n for n in graph.nodes if arm_of(n, branch.site, branches) is (not acting)]
    for dead in reversed(idle):
        if not dead.users and not written_nodes(dead):
            graph.erase_node(dead)
    _erase_unused(predicate)  # type: ignore[arg-type]


def _erase_unused(node: fx.Node) -> None:
    """Erase a pure call nobody reads, and what it alone read."""
    calls = node.op in ("call_function", "call_method")
    if not calls or node.users or written_nodes(node) or is_random(node) or partial_reason(node):
        return
    operands = node.all_input_nodes
    node.graph.erase_node(node)
    for operand in operands:
        _erase_unused(operand)


def _acting_arm(node: fx.Node) -> bool | None:
    """The arm that may run always, because it does nothing where the other would have run."""
    predicate, taken, other = node.args
    for acting in (True, False):
        facts = facts_of(predicate, not acting)  # type: ignore[arg-type]
        if not _still_hold(facts, node):
            continue
        branches = known_branches(node.graph)
        site = node.meta[BRANCH].site
        inside = [n for n in node.graph.nodes if arm_of(n, site, branches) is not None]
        idle = other if acting else taken
        acts = taken if acting else other
        unchanged = _Unchanged(facts, inside)
        pairs = zip(acts, idle, strict=True)  # type: ignore[arg-type]
        if all(unchanged.is_same(a, b) for a, b in pairs):
            return acting
    return None


def _still_hold(facts: MaskFacts, site: fx.Node) -> bool:
    """Whether there are facts, about masks that nobody wrote before the branch."""
    masks = {*facts.false, *facts.true}
    known: set[int] = set()
    for node in site.graph.nodes:
        if node is site:
            break
        if not known.isdisjoint(memories(written_nodes(node))):
            return False
        known.update(memories([node]) if node in masks else [])
    return bool(masks)


class _Unchanged:
    """What the values the arms leave are when masks are known to be false."""

    def __init__(self, facts: MaskFacts, arms: list[fx.Node]) -> None:
        self.facts = dataclasses.replace(facts, source=self._source)
        self.written: set[int | None] = set()
        for node in arms:  # in program order: a mask may be made of what was stored before it
            if not self._stores_nothing(node):
                self.written.update(map(memory_of, written_nodes(node)))

    def is_same(self, value: fx.Node, idle: fx.Node) -> bool:
        """Whether ``value`` holds what ``idle`` holds."""
        return self._source(value) is self._source(idle)

    def _source(self, node: fx.Node) -> fx.Node:
        """The node whose value this one hands on."""
        while True:
            handed = self._handed_on(node)
            if handed is None or memory_of(node) in self.written:
                return node
            if not _same_kind(node, handed):
                return node
            node = handed

    def _handed_on(self, node: fx.Node) -> fx.Node | None:
        name = op_name(node)
        if name in ("masked_fill", "masked_fill_") and self.facts.is_false(node.args[1]):
            return node.args[0]  # type: ignore[return-value]
        if name == "where" and len(node.args) == 3:
            if self.facts.is_false(node.args[0]):
                return node.args[2] if isinstance(node.args[2], fx.Node) else None
            if self.facts.is_true(node.args[0]):
                return node.args[1] if isinstance(node.args[1], fx.Node) else None
        if name in ("clone", "copy_"):
            return node.args[0]  # type: ignore[return-value]
        return None

    def _stores_nothing(self, node: fx.Node) -> bool:
        name = op_name(node)
        if name == "masked_fill_":
            return self.facts.is_false(node.args[1])
        if name == "copy_" and isinstance(node.args[1], fx.Node):
            source = node.args[1]
            if op_name(source) == "where" and len(source.args) == 3:
                chosen = source.args[2] if self.facts.is_false(source.args[0]) else None
                return chosen is node.args[0]
        return False


def _same_kind(a: fx.Node, b: fx.Node) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None or x.dim() != y.dim():
        return False
    same_shape = all(torch_private.known_equal(m, n) for m, n in zip(x.shape, y.shape, strict=True))
    return same_shape and (x.dtype, x.device) == (y.dtype, y.device)


RULE = GraphRule(
    "branch_drop",
    _is_where_site,
    _check,
    _replace,
    summary="the arm stores through a mask that is all false when the guard would skip it",
    settled_by_capture=True,
    treatment="drop",
    sources=(mask_facts, same_value),
)
