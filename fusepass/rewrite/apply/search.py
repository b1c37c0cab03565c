"""All places in one graph where one of several rules may act, and why the others may not."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.errors import RewriteFault, RuleCheckFault, RuleError
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.terms.rowwise import is_pointwise
from fusepass.graph.terms.term import Term, operands, plain_name, root_names
from fusepass.graph.terms.term_graph import TermGraph
from fusepass.options import Options
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.candidate_filter import (
    CheckFailed,
    GraphSearch,
    filter_match,
    is_training,
)
from fusepass.rewrite.apply.replacement import MatchSite
from fusepass.rewrite.apply.splice import REPLACED_BY_RULE
from fusepass.rewrite.match import near_miss
from fusepass.rewrite.match.legality import Surroundings
from fusepass.rewrite.match.matcher import MatchAttempt, NearMiss
from fusepass.rewrite.match.pattern import FLOATS, Pattern, pattern_of
from fusepass.rewrite.rule import Place, Reject, Rule


@dataclass
class SearchResult:
    """What a search of one graph gave.

    Attributes:
        sites: where a rule may act.
        rejected: rule, output node and reason for each match that was turned down.
        misses: the nearest miss of each rule that matched nowhere.
        partial_matches: for a call no rule matched, the built-in rule that came nearest.
        touched: calls of all matches, also of those turned down.
    """

    sites: list[MatchSite] = field(default_factory=list)
    rejected: list[tuple[Rule, fx.Node, Reject]] = field(default_factory=list)
    misses: dict[str, NearMiss] = field(default_factory=dict)
    partial_matches: dict[fx.Node, tuple[str, NearMiss]] = field(default_factory=dict)
    touched: set[fx.Node] = field(default_factory=set)


def search(
    graph: fx.Graph,
    rules: Sequence[Rule],
    options: Options,
    place: Place,
    fake_mode: Any,
    faulty: set[str],
    built_in: frozenset[str],
) -> SearchResult:
    """Try every rule at every node.

    Rules that fail are left alone, and added to ``faulty``.
    """
    found = SearchResult()
    by_name = _patterns_by_name(graph, _rules_for_devices(graph, rules, options), faulty)
    if not by_name or fake_mode is None:
        return found
    terms = TermGraph(graph)
    training = is_training(terms, place)
    within = GraphSearch(terms, Surroundings.of(terms), options, fake_mode, training, place, faulty)
    for node in graph.nodes:
        patterns = by_name.get(plain_name(node) or "", ())
        if not patterns or tensor_value(node) is None:
            continue
        term = terms.term(node)
        for pattern in patterns:
            if term.op == pattern.widest_first[0].op and pattern.rule.name not in faulty:
                _try(within, pattern, term, found)
    if not found.sites:  # the last round: what is left is for the report
        _find_misses(within, by_name, found, built_in)
    return found


def _find_misses(
    within: GraphSearch,
    by_name: dict[str, list[Pattern]],
    found: SearchResult,
    built_in: frozenset[str],
) -> None:
    """Keep the best miss of each user's rule, and that of a built-in one at each similar call."""
    matched = {rule.name for rule, _, _ in found.rejected}
    patterns = dict.fromkeys(p for listed in by_name.values() for p in listed)
    for core, pattern, miss in near_miss.search_from_below(within.terms, list(patterns)):
        name = pattern.rule.name
        if name in miss.node.meta.get(REPLACED_BY_RULE, ()) or name in core.meta.get(
            REPLACED_BY_RULE, ()
        ):
            continue
        if name not in built_in and name not in matched:
            near_miss.keep_best(found.misses, name, miss)
        elif name in built_in and core not in found.touched and _resembles_pattern(within, miss):
            held = found.partial_matches.get(core)
            if held is None or miss.matched * held[1].of > held[1].matched * miss.of:
                found.partial_matches[core] = (name, miss)
    for name in [*(built_in & found.misses.keys()), *(matched & found.misses.keys())]:
        found.misses.pop(name, None)


def _resembles_pattern(within: GraphSearch, miss: NearMiss) -> bool:
    """A linear layer and a residual are no failed activation: no other full tensor may join."""
    term = within.terms.term(miss.node)
    ranks = {operand.key: _rank(operand.node) for operand in operands(term)}
    alone = sum(rank == _rank(miss.node) for rank in ranks.values()) == 1
    return 2 * miss.matched >= miss.of and alone and is_pointwise(term.op)


def _rank(node: fx.Node | None) -> int:
    value = tensor_value(node)
    return -1 if value is None else value.dim()


def _rules_for_devices(graph: fx.Graph, rules: Sequence[Rule], options: Options) -> Sequence[Rule]:
    """Rules that have a device in this graph; references run on any."""
    if options.candidate == "reference" or not any(rule.devices for rule in rules):
        return rules
    values = map(tensor_value, graph.nodes)
    present = {v.device.type for v in values if v is not None}
    return [r for r in rules if not r.devices or present & set(r.devices)]


def _patterns_by_name(
    graph: fx.Graph, rules: Sequence[Rule], faulty: set[str]
) -> dict[str, list[Pattern]]:
    """Canonical name of a call to the patterns whose first root such a call may be."""
    values = [v for v in map(tensor_value, graph.nodes) if v is not None]
    dtypes = [d for d in FLOATS if any(v.dtype == d for v in values)] or [torch.float32]
    table: dict[str, list[Pattern]] = {}
    for rule in rules:
        if rule.name in faulty:
            continue
        try:
            patterns = list(dict.fromkeys(pattern_of(rule, dtype) for dtype in dtypes))
        except RuleError as error:
            faulty.add(rule.name)
            warnings.warn(RewriteFault(rule.name, str(error)), stacklevel=2)
            continue
        for pattern in patterns:
            for name in root_names(pattern.widest_first[0].op):
                table.setdefault(name, []).append(pattern)
    return table


def _try(within: GraphSearch, pattern: Pattern, root: Term, found: SearchResult) -> None:
    rule = pattern.rule
    attempt = MatchAttempt(pattern, within.terms)
    first: Reject | None = None
    for state in attempt.run(root):
        found.touched.update(state.nodes)
        try:
            site = filter_match(within, pattern, state)
        except Exception as fault:  # noqa: BLE001 - rules are anybody's code
            within.faulty.add(rule.name)
            problem = _warn_of_fault(rule, fault)
            found.rejected.append(
                (rule, root.owner, Reject(Reason.INTERNAL, f"it failed: {problem}", root.owner))
            )
            return
        if isinstance(site, MatchSite):
            found.sites.append(site)
            return
        first = first or site
    if first is not None:
        found.rejected.append((rule, root.owner, first))
    elif attempt.miss is not None and rule.name not in root.owner.meta.get(REPLACED_BY_RULE, ()):
        near_miss.keep_best(found.misses, rule.name, attempt.miss)


def _warn_of_fault(rule: Rule, fault: Exception) -> str:
    """Warn of a fault at a match, at the rule's own line if it is in its ``check``; what it was."""
    users = not (getattr(rule.check, "__module__", None) or "").startswith("fusepass.")
    if isinstance(fault, CheckFailed) and users:
        warning = RuleCheckFault(rule.name, rule.location, str(fault))
        file, _, line = rule.location.rpartition(":")
        if line.isdigit():
            warnings.warn_explicit(warning, None, file, int(line))
        else:
            warnings.warn(warning, stacklevel=3)
        return str(fault)
    problem = str(fault) if isinstance(fault, CheckFailed) else f"{type(fault).__name__}: {fault}"
    warnings.warn(RewriteFault(rule.name, problem), stacklevel=3)
    return problem


def fake_mode_of(graph: fx.Graph) -> Any:
    """The fake mode of the values in a graph, or None."""
    for node in graph.nodes:
        mode = getattr(tensor_value(node), "fake_mode", None)
        if mode is not None:
            return mode
    return None
