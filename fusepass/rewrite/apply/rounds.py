"""Applies rules made of patterns to one graph: search, choose among overlaps, splice, again.

A graph is searched until nothing matches any more. What a rule made is marked, and a rule never
matches what it made itself, so the rounds come to an end whatever the rules are.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import networkx as nx
import torch
from torch import fx

from fusepass.errors import RewriteFault
from fusepass.graph.ops.op_names import tensor_value
from fusepass.options import Options
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.rewrite.apply.replacement import MatchSite
from fusepass.rewrite.apply.search import SearchResult, fake_mode_of, search
from fusepass.rewrite.apply.snapshot import copy_graph
from fusepass.rewrite.apply.splice import Replaced, splice
from fusepass.rewrite.rule import Place, Reject, Rule
from fusepass.torch_private.fx.graphs import source_of
from fusepass.torch_private.fx.size_nodes import symbol_nodes

# --- Which of several matches that want the same nodes are applied --------------------------------
# Matches that exclude each other are neighbours in a conflict graph; the best choice is an
# independent set of greatest weight (exact where few matches hang together, greedy beyond).

EXACT_UP_TO = 16  # sites in one connected part of the conflict graph
_SOME_SIZE = 64  # for a symbolic one
_LAUNCH_NS = 2000.0
_NS_PER_BYTE = 1e9 / 3e12


def select_non_overlapping(
    sites: Sequence[MatchSite],
) -> tuple[list[MatchSite], dict[int, MatchSite]]:
    """The sites to apply, and for each one left out (by place in ``sites``) who stands in its way.

    Higher ``priority`` goes first; among equals the set with the greatest saving wins.
    """
    taken: list[MatchSite] = []
    losers: dict[int, MatchSite] = {}
    order = sorted({site.pattern.rule.priority for site in sites}, reverse=True)
    owner: dict[fx.Node, MatchSite] = {}
    for priority in order:
        free = []
        for place, site in enumerate(sites):
            if site.pattern.rule.priority != priority:
                continue
            rival = next((owner[n] for n in site.cut.nodes if n in owner), None)
            if rival is None:
                free.append((place, site))
            else:
                losers[place] = rival
        winners = _independent(free)
        for place, site in free:
            if place in winners:
                taken.append(site)
                owner.update(dict.fromkeys(site.cut.nodes, site))
        for place, site in free:
            if place not in winners:
                losers[place] = next((owner[n] for n in site.cut.nodes if n in owner), taken[-1])
    return taken, losers


def _independent(sites: list[tuple[int, MatchSite]]) -> set[int]:
    graph = nx.Graph()
    claimed: dict[fx.Node, list[int]] = {}
    for place, site in sites:
        graph.add_node(place, weight=estimated_saving(site))
        for node in site.cut.nodes:
            claimed.setdefault(node, []).append(place)
    for places in claimed.values():
        graph.add_edges_from((a, b) for i, a in enumerate(places) for b in places[i + 1 :])
    # A match that reads what is inside another one cannot be applied beside it.
    for place, site in sites:
        for base in site.bases:
            for other in claimed.get(base, ()):
                rival = next(s for p, s in sites if p == other)
                if other != place and base not in rival.outputs:
                    graph.add_edge(place, other)
    best: set[int] = set()
    for part in nx.connected_components(graph):
        best |= _heaviest_independent_set(graph.subgraph(part))
    return best


def _heaviest_independent_set(part: nx.Graph) -> set[int]:
    if len(part) == 1:
        return set(part)
    if len(part) <= EXACT_UP_TO:
        compatible = nx.complement(part)
        compatible.add_nodes_from(part.nodes(data=True))  # the complement drops the weights
        clique, _ = nx.max_weight_clique(compatible, weight="weight")
        return set(clique)
    picked: set[int] = set()
    for place in sorted(part, key=lambda p: (-part.nodes[p]["weight"], p)):
        if not picked & set(part[place]):
            picked.add(place)
    return picked


def estimated_saving(site: MatchSite) -> int:
    """Estimated saving in nanoseconds: launches, and traffic of values no longer stored."""
    nanoseconds = _LAUNCH_NS * len(site.cut.nodes)
    for node in site.cut.nodes:
        value = tensor_value(node)
        if node not in site.outputs and value is not None:
            sizes = (size if type(size) is int else _SOME_SIZE for size in value.shape)
            count = math.prod(sizes)
            nanoseconds += 2 * count * value.element_size() * _NS_PER_BYTE
    return int(nanoseconds)


MAX_ROUNDS = 16
_NOTHING: Mapping[str, float] = MappingProxyType({})


def apply_rules(
    gm: fx.GraphModule,
    rules: Sequence[Rule],
    options: Options,
    place: Place,
    built_in: frozenset[str] = frozenset(),
) -> list[Decision]:
    """Apply the rules of one place to ``gm``'s graph, in it.

    For rules named in ``built_in`` the nearest miss at each call is reported.

    Returns:
        One decision per application, per match turned down, and per rule that nearly matched.
    """
    if not rules:
        return []
    try:
        with torch.inference_mode(False):  # what is tried has version counters and gradients
            return _rounds(gm, rules, options, place, built_in)
    except Exception as fault:  # noqa: BLE001 - an unforeseen graph must not cost the compile
        problem = f"{type(fault).__name__}: {fault}"
        warnings.warn(RewriteFault("pattern rules", problem), stacklevel=2)
        text = f"no rule was tried on this graph: {problem}"
        return [Decision(Station(place), "rules", Outcome.REJECTED, Reason.INTERNAL, text)]


def _rounds(
    gm: fx.GraphModule,
    rules: Sequence[Rule],
    options: Options,
    place: Place,
    built_in: frozenset[str],
) -> list[Decision]:
    applied: list[Decision] = []
    conflicts: list[Decision] = []
    faulty: set[str] = set()
    found = SearchResult()
    for _ in range(MAX_ROUNDS):
        found = search(gm.graph, rules, options, place, fake_mode_of(gm.graph), faulty, built_in)
        if not found.sites:
            break
        sites, losers = select_non_overlapping(found.sites)
        station = Station(place)
        conflicts += [
            _conflict_decision(station, found.sites[i], rival)
            for i, rival in losers.items()
            if not {found.sites[i].pattern.rule.name, rival.pattern.rule.name} <= built_in
        ]
        before = copy_graph(gm.graph)
        try:
            decisions = [_applied_decision(station, site) for site in _splice_all(gm, sites)]
        except Exception as fault:  # noqa: BLE001 - whatever it is, the graph must stay whole
            gm.graph = before
            names = ", ".join(sorted({site.pattern.rule.name for site in sites}))
            warnings.warn(RewriteFault(names, f"{type(fault).__name__}: {fault}"), stacklevel=2)
            faulty.update(site.pattern.rule.name for site in sites)
            continue
        applied += decisions
    if applied:
        gm.recompile()
    station = Station(place)
    rejected = [
        _rejected_decision(station, rule, node, reject)
        for rule, node, reject in found.rejected
        # Our rules overlap by design: one that leaves a site to another of them is no news.
        if not (rule.name in built_in and reject.code is Reason.OVERLAP)
    ]
    return applied + conflicts + rejected + _near_misses(station, found)


def _splice_all(gm: fx.GraphModule, sites: Sequence[MatchSite]) -> list[MatchSite]:
    """Splice in graph order; a site another one cut into is left for the next round."""
    symbols = symbol_nodes(gm.graph)
    renamed = Replaced()
    gone: set[fx.Node] = set()
    done: list[MatchSite] = []
    order = {node: position for position, node in enumerate(gm.graph.nodes)}
    for site in sorted(sites, key=lambda s: order[s.cut.nodes[-1]]):
        needed = {
            n for n in (site.cut.before, *site.bases) if n is not None
        } - renamed.outputs.keys()
        if site.cut.before in gone or needed & gone:
            continue
        splice(site, renamed, symbols)
        gone.update(site.cut.nodes)
        done.append(site)
    gm.graph.lint()
    return done


def _applied_decision(station: Station, site: MatchSite) -> Decision:
    verdict, gone = site.verdict, len(site.cut.nodes)
    text = f"{gone} operations became one replacement"
    code, times = Reason.PROVED, _NOTHING
    if verdict is not None:
        text, code, times = f"{text}: {verdict.text}", verdict.code, verdict.microseconds
    name = site.pattern.rule.name
    return _decision(station, name, Outcome.APPLIED, code, text, site.outputs[0], times)


def _conflict_decision(station: Station, site: MatchSite, rival: MatchSite) -> Decision:
    text = f"rule {rival.pattern.rule.name!r} took the same operations"
    name = site.pattern.rule.name
    return _decision(station, name, Outcome.REJECTED, Reason.OVERLAP, text, site.outputs[0])


def _rejected_decision(station: Station, rule: Rule, node: fx.Node, reject: Reject) -> Decision:
    outcome = {Reason.SLOWER: Outcome.SLOWER, Reason.NO_RULE: Outcome.LEFT_TO_INDUCTOR}.get(
        reject.code, Outcome.REJECTED
    )
    own = reject.node is not None and source_of(reject.node)[0]
    where = reject.node if reject.node is not None and own else node
    times = reject.microseconds
    return _decision(station, rule.name, outcome, reject.code, reject.text, where, times)


def _near_misses(station: Station, found: SearchResult) -> list[Decision]:
    pairs = [*found.misses.items(), *found.partial_matches.values()]
    return [
        _decision(station, name, Outcome.REJECTED, miss.code, miss.sentence(), miss.node)
        for name, miss in pairs
    ]


def _decision(
    station: Station,
    rule: str,
    outcome: Outcome,
    code: Reason,
    text: str,
    node: fx.Node,
    microseconds: Mapping[str, float] = _NOTHING,
) -> Decision:
    place = source_of(node)
    return Decision(station, rule, outcome, code, text, "", *place, dict(microseconds))
