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

from collections.abc import Iterable
from typing import Any

from torch import fx

from fusepass.capture.nodes.select_node import BRANCH, Branch, arm_of
from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.dataflow.mask_facts import facts_of
from fusepass.graph.dataflow.memory import are_alike
from fusepass.graph.dataflow.recursion import Steps
from fusepass.graph.dataflow.value_numbering import ValueNumbering
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import argument, op_name, tensor_value, where_parts
from fusepass.graph.safety.totality import partial_reason
from fusepass.patterns.branch_to_where import erase_select, known_branches, treated_as
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import GraphRule, Reject, RuleSite


def _check(site: RuleSite) -> Reject | None:
    if _acting_arm(site.anchor) is None:
        return Reject(Reason.VARIANT, "an arm does more than store through a mask", site.anchor)
    return None


def _replace(site: RuleSite) -> None:
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
    todo = [node]
    while todo:
        unused = todo.pop()
        calls = unused.op in ("call_function", "call_method") and not unused._erased
        if not calls or unused.users or written_nodes(unused):
            continue
        if not (is_random(unused) or partial_reason(unused)):
            todo += unused.all_input_nodes
            unused.graph.erase_node(unused)


def _acting_arm(node: fx.Node) -> bool | None:
    """The arm that may run always, because it does nothing where the other would have run."""
    predicate, taken, other = node.args
    for acting in (True, False):
        idle = other if acting else taken
        acts = taken if acting else other
        pairs = list(zip(acts, idle, strict=True))  # type: ignore[arg-type]
        if not all(a is b or {op_name(a), op_name(b)} & _PASSTHROUGH_OPS for a, b in pairs):
            continue
        history = WriteHistory(node.graph, node)
        unchanged = _ArmResults(history, predicate, not acting, history.moments[node])  # type: ignore[arg-type]
        if not (unchanged.facts.false or unchanged.facts.true):
            continue
        branches = known_branches(node.graph)
        site = node.meta[BRANCH].site
        unchanged.look_at(n for n in node.graph.nodes if arm_of(n, site, branches) is not None)
        moments = history.moments[node], history.moments[node]
        if all(unchanged.values.are_same(a, b, moments) for a, b in pairs):
            return None if node.meta[BRANCH].gated and unchanged.hands_gradients else acting
    return None


_PASSTHROUGH_OPS = {"clone", "copy_", "masked_fill", "masked_fill_", "where"}


class _ArmResults:
    """What the values the arms leave are when a predicate came out one way.

    Attributes:
        values: compares them.
        facts: masks of which every element is known then.
        hands_gradients: whether a value that is not stored then would get (zero) gradients.
    """

    def __init__(
        self, history: WriteHistory, predicate: fx.Node, outcome: bool, moment: int
    ) -> None:
        self.history = history
        self.values = ValueNumbering(history, self._passthrough)
        self.facts = facts_of(predicate, outcome, self.values, moment)
        self.hands_gradients = False

    def look_at(self, arms: Iterable[fx.Node]) -> None:
        """Leave out the writes that store nothing; a mask may be made of what was stored before."""
        for node in arms:
            if written_nodes(node) and self.values.questions.answer(self._stores_nothing, node):
                self.history.ignore_writes(node)
                self.values.questions.retry_unknown()

    def _passthrough(self, node: fx.Node) -> Steps:
        """Step function: the node whose value this one hands on when it is computed."""
        name, moment = op_name(node), self.history.moments[node]
        handed: object = None
        if name in ("masked_fill", "masked_fill_"):
            mask, value = argument(node, 1, "mask"), argument(node, 2, "value")
            if (yield (self._is_all, False, mask, moment)):
                handed = node.args[0]
                self._note(value)
        elif (parts := where_parts(node)) is not None:
            condition, if_true, if_false = parts
            if (yield (self._is_all, False, condition, moment)):
                handed = if_false
                self._note(if_true)
            elif (yield (self._is_all, True, condition, moment)):
                handed = if_true
                self._note(if_false)
        elif name == "clone" or (name == "copy_" and (yield (self._stores_nothing, node))):
            handed = node.args[0]
        return handed if isinstance(handed, fx.Node) and are_alike(node, handed) else None

    def _is_all(self, value: bool, mask: Any, moment: int) -> Steps:
        """Step function: whether all elements of a mask have a value; it may be one number."""
        if not isinstance(mask, fx.Node):
            return mask is value
        return (yield (self.facts.all_equal, value, mask, moment))

    def _note(self, unused: object) -> None:
        value = tensor_value(unused)
        self.hands_gradients |= value is not None and value.requires_grad

    def _stores_nothing(self, node: fx.Node) -> Steps:
        """Step function: whether what a call writes was there before."""
        name, moment = op_name(node), self.history.moments[node]
        if name == "masked_fill_":
            return (yield (self._is_all, False, argument(node, 1, "mask"), moment))
        if name != "copy_" or not isinstance(node.args[1], fx.Node):
            return False
        source, target = node.args[1], node.args[0]
        parts = where_parts(source)
        if parts is None or not self.history.holds_value(source, moment):
            return False
        read = self.history.moments[source]
        if not (yield (self._is_all, False, parts[0], read)) or not isinstance(target, fx.Node):
            return False
        self._note(parts[1])
        return parts[2] is target and not self.history.is_written(target, read, moment)


RULE = GraphRule(
    "branch_drop",
    treated_as("where"),
    _check,
    _replace,
    summary="the arm stores through a mask that is all false when the guard would skip it",
    settled_by_capture=True,
    treatment="drop",
)
