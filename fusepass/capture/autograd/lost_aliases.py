"""Find aliases of tensors that a captured branch would lose, in the complete graph.

``if c: x = f(x)`` hands on *x itself* when ``c`` is false; a select hands on a fresh tensor.
Nobody can tell unless the two are both visible outside the graph, or one of them is written
afterwards. Storages that may be one in eager are put in one class; a class with a selected tensor
and a second visible storage, or with a later write, takes its branches back.
"""

from __future__ import annotations

import networkx as nx
from torch import fx

from fusepass.capture.mutation.shadow_rewriter import SHADOW_OF
from fusepass.capture.nodes.select_node import (
    BRANCH,
    WRITTEN,
    Branch,
    arm_of,
    branches_of,
    selects_of,
)
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.torch_private.fx.graphs import storage_key


def lost_aliases(graph: fx.Graph, allow_fresh_output: bool) -> dict[int, str]:
    """Find the sites that must be taken back, in a complete graph, with the reason of each.

    ``allow_fresh_output``: an output may be fresh where eager's aliases another value.
    """
    selects = selects_of(graph)
    if not selects:
        return {}
    branches = branches_of(selects)
    owners: dict[int, set[fx.Node]] = {}
    for node in graph.nodes:
        for key in memories([node]):
            owners.setdefault(key, set()).add(node)
    shared = nx.Graph()  # storages that may be one in eager are connected
    selected: dict[int, int] = {}  # storage of a selected tensor -> site
    shadows = _shadows(graph)
    for node in selects:
        _join_aliases(node, branches, owners, shared, selected, shadows)
    classes = {key: found for found in nx.connected_components(shared) for key in found}
    inputs = set(memories(n for n in graph.nodes if n.op in ("placeholder", "get_attr")))
    outputs = set(memories(graph.output_node().all_input_nodes))
    lost: dict[int, str] = {}
    for key, site in selected.items() if not allow_fresh_output else ():
        if key in outputs and (classes.get(key, {key}) & (inputs | outputs)) - {key}:
            lost[site] = (
                "a tensor handed on unchanged by an arm is visible outside under another name "
                "(allow_fresh_output permits a fresh tensor)"
            )
    return lost | _later_writes(graph, selects, classes, selected)


def _join_aliases(
    node: fx.Node,
    branches: dict[int, Branch],
    owners: dict[int, set[fx.Node]],
    shared: nx.Graph,
    selected: dict[int, int],
    shadows: dict[int, int],
) -> None:
    """Connect the storages that the results of a select share in eager."""
    site = node.meta[BRANCH].site
    results = node.meta["example_value"][: node.meta.get(WRITTEN)]
    keys = [storage_key(value) for value in results]
    for key in keys:
        selected[key] = site
    for arm, values in ((True, node.args[1]), (False, node.args[2])):
        first: dict[int, int] = {}
        for key, value in zip(keys, values, strict=False):  # type: ignore[arg-type]
            for held in memories([value]):
                source = shadows.get(held, held)  # in eager it is the older memory itself
                if source in first:
                    shared.add_edge(key, first[source])  # two results that are views of one tensor
                first[source] = key
                outside = any(arm_of(o, site, branches) is not arm for o in owners[source])
                if outside or source in selected:  # an inner branch may hand on what is outside
                    shared.add_edge(key, source)


def _shadows(graph: fx.Graph) -> dict[int, int]:
    """Memory of each shadow to the memory it stands in for, through the shadows of outer arms."""
    direct: dict[int, int] = {}
    for node in graph.nodes:
        older = node.meta.get(SHADOW_OF)
        if older is not None:
            direct.update(zip(memories([node]), memories([older]), strict=False))
    resolved = {}
    for shadow, older in direct.items():
        while older in direct:
            older = direct[older]  # noqa: PLW2901  # follow the chain to its end
        resolved[shadow] = older
    return resolved


def _later_writes(
    graph: fx.Graph, selects: list[fx.Node], classes: dict[int, set[int]], selected: dict[int, int]
) -> dict[int, str]:
    """Sites whose results, or predicates, share memory that is written after them."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    at = {n.meta[BRANCH].site: order[n] for n in selects}
    tested = {key: n.meta[BRANCH].site for n in selects for key in memories([n.args[0]])}
    lost: dict[int, str] = {}
    for node in graph.nodes:
        for key in memories(written_nodes(node)):
            for member, site in selected.items():
                same = classes.get(member, set())
                if order[node] > at[site] and len(same) > 1 and key in same:
                    lost[site] = "a tensor handed on unchanged by an arm is written afterwards"
            if key in tested and order[node] > at[tested[key]]:
                lost[tested[key]] = "the tensor tested is written afterwards"
    return lost
