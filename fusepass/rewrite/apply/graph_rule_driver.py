"""Applies rules to a graph before autograd, checks what they did, and undoes what they must not do.

A rule that fails, or changes what the graph hands out, costs the user that rule on that graph and
a warning, never the program.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import fx

from fusepass.capture.nodes.select_node import BRANCH, Branch
from fusepass.errors import BranchRuleError, RewriteFault
from fusepass.options import Options
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.rewrite.apply.snapshot import copy_graph
from fusepass.rewrite.apply.verify import GraphFacts
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite
from fusepass.torch_private.dynamo.compile_state import transparent
from fusepass.torch_private.fx.graph_constants import remove_constant
from fusepass.torch_private.fx.graphs import fake_mode_of, source_of

AcceptEdit = Callable[[fx.GraphModule], Reject | None]


def rewrite(
    gm: fx.GraphModule,
    rules: tuple[GraphRule, ...],
    options: Options,
    station: Station = Station.BEFORE,
    admit: AcceptEdit | None = None,
) -> list[Decision]:
    """Apply rules to ``gm`` and the graphs nested in it, in place.

    If ``admit`` rejects a graph that a rule has edited, the edit is undone.

    Returns:
        One decision per site a rule looked at and did not settle silently.

    Raises:
        BranchRuleError: a rule settled by capture failed; the graph cannot do without it.
    """
    decisions: list[Decision] = []
    for rule in rules:
        for module in innermost_first(gm):  # a rule before this one may have made new ones
            nested = module is not gm
            decisions += _RuleRun(module, rule, options, station, nested=nested, admit=admit).run()
    return decisions


class _RuleRun:
    """One rule on one graph: all of its sites, or none when it fails at one of them."""

    def __init__(
        self,
        gm: fx.GraphModule,
        rule: GraphRule,
        options: Options,
        station: Station,
        *,
        nested: bool,
        admit: AcceptEdit | None,
    ) -> None:
        self.gm, self.rule, self.options, self.nested = gm, rule, options, nested
        self.station, self.admit = station, admit
        self.before: fx.Graph | None = None  # the graph before the first edit
        self.children = {name for name, _ in gm.named_children()}
        self.buffers = {name for name, _ in gm.named_buffers(recurse=False)}
        self.site: fx.Node | None = None

    def run(self) -> list[Decision]:
        try:
            return self._apply()
        except Exception as fault:  # noqa: BLE001 - rules are anybody's code
            return [self._undo(fault)]

    def _apply(self) -> list[Decision]:
        gm, rule, options = self.gm, self.rule, self.options
        anchors = [node for node in gm.graph.nodes if rule.anchor(node)]
        decisions: list[Decision] = []
        facts: GraphFacts | None = None
        changed = False
        fake_mode = fake_mode_of(gm) if anchors else None
        shared: dict[str, Any] = {}
        present = set(anchors)
        if anchors and rule.tries:
            self.before = copy_graph(gm.graph)
        for node in anchors:
            if node not in present:
                continue  # another replacement took it in
            self.site = node
            match = RuleSite(gm, node, options, fake_mode, self.nested, shared)
            verdict = self._verdict(match)
            # Capture has reported its own branches; and where a node came from is slow to read.
            place = ("", 0) if rule.settled_by_capture else source_of(node)
            if isinstance(verdict, Reject):
                if not rule.settled_by_capture:
                    kept = "keep" if rule.treatment else ""
                    why = verdict.code, verdict.text
                    decisions.append(self._decision(Outcome.REJECTED, *why, place, kept))
                continue
            if not changed and not rule.settled_by_capture:  # capture has proved its own rules
                self.before = self.before or copy_graph(gm.graph)
                before_autograd = self.station is Station.BEFORE
                verify = options.verify and before_autograd
                facts = GraphFacts(gm.graph, fake_mode) if verify else None
            changed = True
            branch = node.meta.get(BRANCH)
            rule.replace(match)
            present = set(gm.graph.nodes)
            decisions += self._applied_decision(verdict, place, branch)
        if changed:
            rejected = None if facts is None else self._changed_strides(facts)
            if rejected is None:
                gm.graph.lint()
                gm.recompile()
                rejected = None if self.admit is None else self.admit(gm)
            if rejected is not None:
                self._restore_graph()
                return [_undone_decision(one, rejected) for one in decisions]
        return decisions

    def _applied_decision(
        self, verdict: Accept | None, place: tuple[str, int], branch: Branch | None
    ) -> Iterator[Decision]:
        """What is said of a site that the rule has replaced, which may have been a branch."""
        rule = self.rule
        if rule.treatment and branch is not None and branch.line:
            proved = Station.CAPTURE, "branch", Outcome.APPLIED, Reason.PROVED
            yield Decision(*proved, rule.summary, rule.treatment, branch.file, branch.line)
        if not rule.settled_by_capture:
            said = verdict or Accept(Reason.PROVED, rule.summary)
            yield self._decision(Outcome.APPLIED, said.code, said.text, place, rule.treatment)

    def _changed_strides(self, facts: GraphFacts) -> Reject | None:
        """Why the graph cannot stay as the rule made it: results in other strides."""
        try:
            facts.check(self.gm.graph)
        except ValueError as moved:
            if not self.rule.moves:
                raise
            return Reject(Reason.STRIDE_MISMATCH, str(moved), self.site)
        return None

    def _verdict(self, match: RuleSite) -> Reject | Accept | None:
        lowers = self.rule.settled_by_capture and not self.rule.treatment
        if not lowers and not self.options.rule_on(self.rule.name):
            return Reject(Reason.RULE_OFF, "switched off in options", match.anchor)
        return self.rule.check(match)

    def _undo(self, fault: Exception) -> Decision:
        """Put the graph back; a branch whose arms are not gated yet would have wrong gradients."""
        rule, problem = self.rule, f"{type(fault).__name__}: {fault}"
        place = ("", 0) if self.site is None else source_of(self.site)
        if rule.settled_by_capture:
            raise transparent(
                BranchRuleError(rule.name, rule.location, f"{problem}. Please report this")
            ) from fault
        self._restore_graph()
        warnings.warn(RewriteFault(rule.name, problem), stacklevel=2)
        return self._decision(Outcome.REJECTED, Reason.INTERNAL, f"undone: {problem}", place)

    def _restore_graph(self) -> None:
        if self.before is not None:
            self.gm.graph = self.before
            for name in {name for name, _ in self.gm.named_children()} - self.children:
                delattr(self.gm, name)
            for name in {name for name, _ in self.gm.named_buffers(recurse=False)} - self.buffers:
                remove_constant(self.gm, name)

    def _decision(
        self, outcome: Outcome, code: Reason, text: str, place: tuple[str, int], treatment: str = ""
    ) -> Decision:
        return Decision(self.station, self.rule.name, outcome, code, text, treatment, *place)


def _undone_decision(decision: Decision, rejected: Reject) -> Decision:
    if decision.outcome is not Outcome.APPLIED:
        return decision
    text = f"undone: {rejected.text}"
    return replace(
        decision, outcome=Outcome.REJECTED, reason_code=rejected.code, reason=text, treatment=""
    )


def innermost_first(gm: fx.GraphModule) -> list[fx.GraphModule]:
    """A graph module and those nested in it, the nested ones first."""
    return [m for m in gm.modules() if isinstance(m, fx.GraphModule)][::-1]
