"""Find aliases of tensors that a captured branch would lose, in the complete graph.

``if c: x = f(x)`` hands on *x itself* when ``c`` is false; a select hands on a fresh tensor.
Nobody can tell unless the two are both visible outside the graph, or one of them is written
afterwards. Storages that may be one in eager are put in one class; a class with a selected tensor
and a second visible storage, or with a later write, takes its branches back.
"""

from __future__ import annotations

from torch import fx

from fusepass.capture.mutation.shadow_rewriter import SHADOW_OF
from fusepass.capture.nodes.select_node import BRANCH, WRITTEN, Branch, arm_of, select
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.torch_private.fx.graphs import storage_key


def lost_aliases(graph: fx.Graph, allow_fresh_output: bool) -> dict[int, str]:
    """Sites that must be taken back, with the reason of each.

    Args:
        graph: the complete graph of a frame, selects still in it.
        allow_fresh_output: accept that an output is fresh where eager's aliases another value.
    """
    selects = [n for n in graph.nodes if n.target is select and BRANCH in n.meta]
    if not selects:
        return {}
    branches: dict[int, Branch] = {n.meta[BRANCH].site: n.meta[BRANCH] for n in selects}
    owners: dict[int, set[fx.Node]] = {}
    for node in graph.nodes:
        for key in memories([node]):
            owners.setdefault(key, set()).add(node)
    classes = _AliasClasses()
    selected: dict[int, int] = {}  # storage of a selected tensor -> site
    shadows = _shadows(graph)
    for node in selects:
        _join_aliases(node, branches, owners, classes, selected, shadows)
    inputs = set(memories(n for n in graph.nodes if n.op in ("placeholder", "get_attr")))
    output = next(n for n in graph.nodes if n.op == "output")
    outputs = set(memories(output.all_input_nodes))
    lost: dict[int, str] = {}
    if not allow_fresh_output:
        for key, site in selected.items():
            others = (classes.members(key) & (inputs | outputs)) - {key}
            if key in outputs and others:
                lost[site] = (
                    "a tensor handed on unchanged by an arm is visible outside under another name "
                    "(allow_fresh_output permits a fresh tensor)"
                )
    lost.update(_later_writes(graph, selects, classes, selected))
    return lost


def _join_aliases(
    node: fx.Node,
    branches: dict[int, Branch],
    owners: dict[int, set[fx.Node]],
    classes: _AliasClasses,
    selected: dict[int, int],
    shadows: dict[int, int],
) -> None:
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
                    classes.join(key, first[source])  # two results that are views of one tensor
                first[source] = key
                outside = any(arm_of(o, site, branches) is not arm for o in owners[source])
                if outside or source in selected:  # an inner branch may hand on what is outside
                    classes.join(key, source)


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
    graph: fx.Graph, selects: list[fx.Node], classes: _AliasClasses, selected: dict[int, int]
) -> dict[int, str]:
    order = {node: i for i, node in enumerate(graph.nodes)}
    at = {n.meta[BRANCH].site: order[n] for n in selects}
    tested = {key: n.meta[BRANCH].site for n in selects for key in memories([n.args[0]])}
    lost: dict[int, str] = {}
    for node in graph.nodes:
        for key in memories(written_nodes(node)):
            for member, site in selected.items():
                if (
                    order[node] > at[site]
                    and len(classes.members(member)) > 1
                    and key in classes.members(member)
                ):
                    lost[site] = "a tensor handed on unchanged by an arm is written afterwards"
            if key in tested and order[node] > at[tested[key]]:
                lost[tested[key]] = "the tensor tested is written afterwards"
    return lost


class _AliasClasses:
    """Disjoint sets of storages that may be one in eager."""

    def __init__(self) -> None:
        self._sets: dict[int, set[int]] = {}

    def members(self, key: int) -> set[int]:
        return self._sets.get(key, {key})

    def join(self, a: int, b: int) -> None:
        union = self.members(a) | self.members(b)
        for key in union:
            self._sets[key] = union
