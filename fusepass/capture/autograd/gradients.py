"""Find gradients that are ``None`` in eager and would be zero after a captured branch.

A selection sends a zero gradient into the arm that was not taken, where eager sends none. Two
things could show it. A *leaf* that eager leaves at ``grad=None`` would get a zero, and weight
decay would move it. An *operation before the branch* whose result only one arm uses would see a
zero gradient where eager never runs its backward, and zero times an infinite derivative is NaN
(inside the arms themselves gating prevents that).

Something *may* reach an output through some choice of arms, and it *must* reach it when every
choice leads there. Where the two differ for a leaf, its gradient is made None around the graph, or
the branches above stay (none_gradients.py). Where they differ for an operation that could make NaN
of zero, the branches stay. Asked once the graph is complete, because what reaches the output by
another way is safe. Sets are kept as the bits of one integer.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from itertools import chain

from torch import fx

from fusepass.capture.autograd.gradient_paths import (
    carries_grad,
    differentiable_sources,
    is_grad_input,
)
from fusepass.capture.autograd.leaf_uses import ends
from fusepass.capture.autograd.none_gradients import obstacles
from fusepass.capture.nodes.select_node import (
    BRANCH,
    ONE_SIDED,
    branches_of,
    select,
    selects_of,
    sites_around,
)
from fusepass.capture.restarts import Why
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories, memory_of
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.dataflow.writes import writers_by_memory
from fusepass.graph.ops.op_names import op_name
from fusepass.graph.safety.gradient_gates import zero_safe
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import input_name

_ZERO = (
    "only one arm depends on {}: its gradient would be zero, not None, when that arm is not taken, "
    "because {} (allow_zero_grad permits it)"
)
_NAN = (
    "only one arm uses {}, computed before the branch: its backward would turn the zero gradient "
    "of the arm not taken into NaN where it is infinite"
)


@dataclass
class _GradientReach:
    """What may and what must reach each node, as bits; who has which bit.

    Attributes:
        may, must: by node, what is written into it later included.
        differs: by select, what reaches one arm only, as it is when they meet.
    """

    may: dict[fx.Node, int] = field(default_factory=dict)
    must: dict[fx.Node, int] = field(default_factory=dict)
    differs: dict[fx.Node, int] = field(default_factory=dict)
    owners: list[fx.Node] = field(default_factory=list)
    inside: dict[int, int] = field(default_factory=dict)

    def bit_of(self, node: fx.Node) -> int:
        self.owners.append(node)
        return 1 << (len(self.owners) - 1)

    def inside_of(self, chosen: fx.Node) -> int:
        """What stands behind gates of a select's predicate, in arms of this site or another."""
        sites = (node for node in self.differs if node.args[0] is chosen.args[0])
        own = {chosen.meta[BRANCH].site, *(node.meta[BRANCH].site for node in sites)}
        return functools.reduce(operator.or_, (self.inside.get(site, 0) for site in own), 0)

    def named(self, bits: int) -> list[fx.Node]:
        return [node for i, node in enumerate(self.owners) if bits >> i & 1]


def undecided_gradients(graph: fx.Graph, allow_zero_grad: bool) -> dict[int, Why]:
    """Find the sites that decide whether something has a gradient at all, with the reasons.

    ``allow_zero_grad``: a leaf may get a zero instead of None (NaN is never allowed).
    """
    selects = selects_of(graph)
    if not any(v.requires_grad for n in selects for v in n.meta["example_value"]):
        return {}
    reach = _reach(graph, selects)
    lost: dict[int, Why] = {}
    in_the_way = {} if allow_zero_grad else obstacles(graph, _doubtful_leaves(graph, reach))
    for result in chain(*ends(graph)):
        doubtful = reach.named(reach.may[result] & ~reach.must[result])
        for text in dict.fromkeys(in_the_way[n] for n in doubtful if n in in_the_way):
            leaves = [n for n in doubtful if in_the_way.get(n) == text]
            why = (Reason.NONE_GRAD, _ZERO.format(_names(leaves), text))
            lost |= _deciding_selects(result, leaves, selects, reach, why)
        operations = [n for n in doubtful if not is_grad_input(n)]
        if operations and not _is_one_sided(result):
            why = (Reason.NAN_GRAD, _NAN.format(_names(operations)))
            lost |= _deciding_selects(result, operations, selects, reach, why)
    return lost


def doubtful_leaves(graph: fx.Graph) -> list[fx.Node]:
    """The leaves that some result may depend on, and need not."""
    selects = selects_of(graph)
    if not any(v.requires_grad for n in selects for v in n.meta["example_value"]):
        return []
    return _doubtful_leaves(graph, _reach(graph, selects))


def _doubtful_leaves(graph: fx.Graph, reach: _GradientReach) -> list[fx.Node]:
    differing = (reach.may[n] & ~reach.must[n] for n in chain(*ends(graph)))
    bits = functools.reduce(operator.or_, differing, 0)
    return [node for node in reach.named(bits) if is_grad_input(node)]


def _reach(graph: fx.Graph, selects: list[fx.Node]) -> _GradientReach:
    reach = _GradientReach()
    chosen = set(selects)
    branches = branches_of(selects)
    sharing: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.args and node.args[0] in chosen and node.op == "call_function":
            reach.may[node], reach.must[node] = _reach_of_select(node, reach)
        else:
            own = reach.bit_of(node) if is_grad_input(node) or _could_make_nan(node) else 0
            for site in sites_around(node, branches) if own else ():
                reach.inside[site] = reach.inside.get(site, 0) | own
            sources = differentiable_sources(node)
            reach.may[node] = own | _union(reach.may, sources)
            reach.must[node] = own | _union(reach.must, sources)
        if node in chosen:
            for a, b in zip(node.args[1], node.args[2], strict=True):
                differing = reach.may[a] ^ reach.may[b]
                reach.differs[node] = reach.differs.get(node, 0) | differing
        for key in memories([node]):
            sharing.setdefault(key, []).append(node)
        for written in written_nodes(node):  # a write changes what its target stands for
            for other in sharing.get(memory_of(written) or 0, ()):
                reach.may[other] |= reach.may[node]
                reach.must[other] |= reach.must[node]
    return reach


def _reach_of_select(item: fx.Node, reach: _GradientReach) -> tuple[int, int]:
    """For one result of a select: what reaches either arm, and what reaches both.

    What stands in the arms themselves is behind their gates, and as good as in both.
    """
    if not carries_grad(item):
        return 0, 0
    source, position = item.args
    side = source.meta.get(ONE_SIDED, {}).get(position)  # type: ignore[union-attr]
    if side is not None and not any(user.op == "output" for user in item.users):
        # Code looks at it in arms of the same predicate only: there it is what the arm made.
        made = source.args[1 if side else 2][position]  # type: ignore[union-attr,index]
        return reach.may[made], reach.must[made]  # type: ignore[index]
    taken, other = source.args[1][position], source.args[2][position]  # type: ignore[union-attr,index]
    may = reach.may[taken] | reach.may[other]  # type: ignore[index]
    must_taken, must_other = reach.must[taken], reach.must[other]  # type: ignore[index]
    gated = reach.inside_of(source)  # type: ignore[arg-type]
    return may, (must_taken & must_other) | ((must_taken | must_other) & gated)


def _union(known: dict[fx.Node, int], sources: list[fx.Node]) -> int:
    return functools.reduce(operator.or_, (known[source] for source in sources), 0)


def _deciding_selects(
    result: fx.Node,
    doubtful: list[fx.Node],
    selects: list[fx.Node],
    reach: _GradientReach,
    why: Why,
) -> dict[int, Why]:
    """The selects above ``result`` of which only one arm depends on something doubtful."""
    bits = sum(1 << reach.owners.index(node) for node in doubtful)
    writers = writers_by_memory(result.graph.nodes)

    def before(node: fx.Node) -> list[fx.Node]:
        written = [writer for key in memories([node]) for writer in writers.get(key, ())]
        return node.all_input_nodes + written

    above = {*reached([result], before)}
    lost = {}
    for node in selects:
        site = node.meta[BRANCH].site
        if node in above and reach.differs.get(node, 0) & bits & ~reach.inside_of(node):
            lost[site] = why
    return lost


def _could_make_nan(node: fx.Node) -> bool:
    """Whether the backward of the call multiplies by a value."""
    return (
        node.op in ("call_function", "call_method")
        and node.target is not select
        and carries_grad(node)
        and not zero_safe(node)
    )


def _is_one_sided(result: fx.Node) -> bool:
    """Whether the program holds a result only in calls in which the arm that made it was taken.

    In other calls it is a result that no loss uses, and gets the zeros that torch gives those.
    """
    source = result.args[0] if len(result.args) == 2 else None
    sides = source.meta.get(ONE_SIDED) if isinstance(source, fx.Node) else None
    return bool(sides) and result.args[1] in sides  # type: ignore[operator]


def _names(nodes: list[fx.Node]) -> str:
    return ", ".join(sorted({op_name(n) or input_name(n) for n in nodes})[:3])
