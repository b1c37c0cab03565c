"""A guard is dropped when the arm behind it does nothing where the guard would have kept it out.

    ``if mask.any(): x[mask] = v``  ->  ``x[mask] = v``

A store through a mask of which no element is true stores nothing; ``where(mask, v, x)`` and
``masked_fill(x, mask, v)`` are ``x`` then. So under the assumption that the predicate fails, the
arm's values are shown to be those of the other arm, and the arm may run always: there is no
predicate to compute, read or select by. What a failed predicate says about masks follows from the
reductions it is made of (``any``, ``all``, ``sum() > 0``, through ``not``, ``and``, ``or``).

Gradients agree as well: where no element is true the backward of a masked store hands everything
on. Arms that need gating keep their selection if what they store gets gradients (it could send NaN
back for the zero it gets).
"""

from __future__ import annotations

import dataclasses

from torch import fx

from fusepass import torch_private
from fusepass.capture.select import BRANCH, Branch, arm_of, select
from fusepass.graph import history, mask_facts, same_value
from fusepass.graph.canonical import argument, op_name, tensor_value, where_parts
from fusepass.graph.effects import is_random, written_nodes
from fusepass.graph.history import History
from fusepass.graph.mask_facts import MaskFacts, facts_of
from fusepass.graph.same_value import Held
from fusepass.graph.totality import partial_reason
from fusepass.patterns.branch_to_where import erase_select, known_branches
from fusepass.report.decision import Reason
from fusepass.rewrite.graph_rule import GraphRule, Site
from fusepass.rewrite.reject import Reject


def _is_where_site(node: fx.Node) -> bool:
    return node.target is select and node.meta[BRANCH].treatment == "where"


def _check(site: Site) -> Reject | None:
    if _acting_arm(site.anchor) is None:
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
        user.replace_all_uses_with(kept[user.args[1]])  # type: ignore[index,arg-type]
        graph.erase_node(user)
    erase_select(node)
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
        idle = other if acting else taken
        acts = taken if acting else other
        pairs = list(zip(acts, idle, strict=True))  # type: ignore[arg-type]
        if not all(a is b or {op_name(a), op_name(b)} & _HANDS_ON for a, b in pairs):
            continue
        history = History(node.graph, node)
        facts = facts_of(predicate, not acting, history, history.moments[node])  # type: ignore[arg-type]
        if not (facts.false or facts.true):
            continue
        branches = known_branches(node.graph)
        site = node.meta[BRANCH].site
        inside = [n for n in node.graph.nodes if arm_of(n, site, branches) is not None]
        unchanged = _Unchanged(facts, inside)
        if all(unchanged.is_same(a, b, history.moments[node]) for a, b in pairs):
            return None if node.meta[BRANCH].gated and unchanged.hands_gradients else acting
    return None


_HANDS_ON = {"clone", "copy_", "masked_fill", "masked_fill_", "where"}


class _Unchanged:
    """What the values the arms leave are when masks are known to be false.

    Attributes:
        hands_gradients: whether a value that is not stored then would get (zero) gradients.
    """

    def __init__(self, facts: MaskFacts, arms: list[fx.Node]) -> None:
        self.history = facts.history
        self.facts = dataclasses.replace(facts, source=self._source)
        self.hands_gradients = False
        for node in arms:  # in program order: a mask may be made of what was stored before it
            if self._stores_nothing(node):
                self.history.forgive(node)

    def is_same(self, value: fx.Node, idle: fx.Node, moment: int) -> bool:
        """Whether at a moment ``value`` holds what ``idle`` holds."""
        (a, at_a), (b, at_b) = self._source((value, moment)), self._source((idle, moment))
        return a is b and not self.history.is_written(a, min(at_a, at_b), max(at_a, at_b))

    def _source(self, held: Held) -> Held:
        """The node whose value this one hands on, and when it reads it."""
        node, moment = held
        while self.history.holds(node, moment):
            handed = self._handed_on(node)
            if handed is None or not _same_kind(node, handed):
                break
            node, moment = handed, self.history.moments[node]
        return node, moment

    def _handed_on(self, node: fx.Node) -> fx.Node | None:
        name, moment = op_name(node), self.history.moments[node]
        handed: object = None
        if name in ("masked_fill", "masked_fill_"):
            mask, value = argument(node, 1, "mask"), argument(node, 2, "value")
            if self.facts.is_false(mask, moment):
                handed = node.args[0]
                self._note(value)
        elif (parts := where_parts(node)) is not None:
            condition, if_true, if_false = parts
            if self.facts.is_false(condition, moment):
                handed = if_false
                self._note(if_true)
            elif self.facts.is_true(condition, moment):
                handed = if_true
                self._note(if_false)
        elif name == "clone" or (name == "copy_" and self._stores_nothing(node)):
            handed = node.args[0]
        return handed if isinstance(handed, fx.Node) else None

    def _note(self, unused: object) -> None:
        value = tensor_value(unused)
        self.hands_gradients |= value is not None and value.requires_grad

    def _stores_nothing(self, node: fx.Node) -> bool:
        name, moment = op_name(node), self.history.moments[node]
        if name == "masked_fill_":
            return self.facts.is_false(argument(node, 1, "mask"), moment)
        if name == "copy_" and isinstance(node.args[1], fx.Node):
            source = node.args[1]
            parts = where_parts(source)
            if parts is None or not self.history.holds(source, moment):
                return False
            read, target = self.history.moments[source], node.args[0]
            if self.facts.is_false(parts[0], read) and isinstance(target, fx.Node):
                self._note(parts[1])
                return parts[2] is target and not self.history.is_written(target, read, moment)
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
    sources=(history, mask_facts, same_value),
)
