"""Which of several matches that want the same nodes are applied.

Matches that exclude each other are neighbours in a conflict graph; the best choice is an
independent set of greatest weight (exact where few matches hang together, greedy beyond).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import networkx as nx
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.rewrite.apply.replacement import MatchSite

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
