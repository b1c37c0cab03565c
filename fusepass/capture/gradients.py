"""Gradients that eager leaves None and a selection would make zero.

Eager gives a leaf ``grad=None`` when nothing in the loss depends on it, and optimizers then skip
it; a zero instead lets weight decay move it. A leaf *may* reach an output through some arm, and it
*must* reach it when every choice of arms leads there. Where the two sets differ for an output, a
branch decides whether the leaf has a gradient at all, and that branch must stay. Asked once the
graph is complete, because a leaf that reaches the output by another way is safe.
"""

from __future__ import annotations

from torch import fx

from fusepass.capture.select import BRANCH, select
from fusepass.graph.canonical import tensor_value

Leaves = frozenset[fx.Node]
_NONE: Leaves = frozenset()


def undecided_gradients(graph: fx.Graph) -> dict[int, str]:
    """Sites that decide whether a leaf has a gradient, with the reason of each."""
    selects = [n for n in graph.nodes if n.target is select and BRANCH in n.meta]
    if not any(v.requires_grad for n in selects for v in n.meta["example_value"]):
        return {}
    may: dict[fx.Node, Leaves] = {}
    must: dict[fx.Node, Leaves] = {}
    for node in graph.nodes:
        may[node], must[node] = _leaves(node, may), _leaves(node, must)
        if node.op == "call_function" and node.args and node.args[0] in selects:
            may[node], must[node] = _chosen(node, may, must)
    output = next(n for n in graph.nodes if n.op == "output")
    lost: dict[int, str] = {}
    for result in output.all_input_nodes:
        doubtful = may[result] - must[result]
        if doubtful:
            lost |= _blamed(result, doubtful, selects, may)
    return lost


def _leaves(node: fx.Node, known: dict[fx.Node, Leaves]) -> Leaves:
    if not _carries_grad(node):
        return _NONE
    if node.op in ("placeholder", "get_attr"):
        return frozenset({node})
    return _NONE.union(*(known[source] for source in node.all_input_nodes))


def _chosen(
    item: fx.Node, may: dict[fx.Node, Leaves], must: dict[fx.Node, Leaves]
) -> tuple[Leaves, Leaves]:
    """Leaves of one result of a select: of either arm, and of both."""
    if not _carries_grad(item):
        return _NONE, _NONE
    source, position = item.args
    taken, other = source.args[1][position], source.args[2][position]  # type: ignore[union-attr,index]
    may_reach = may[taken] | may[other]  # type: ignore[index]
    return may_reach, must[taken] & must[other]  # type: ignore[index]


def _blamed(
    result: fx.Node, doubtful: Leaves, selects: list[fx.Node], may: dict[fx.Node, Leaves]
) -> dict[int, str]:
    """The selects above ``result`` of which only one arm depends on a doubtful leaf."""
    above: set[fx.Node] = set()
    todo = [result]
    while todo:
        node = todo.pop()
        if node not in above:
            above.add(node)
            todo.extend(node.all_input_nodes)
    names = ", ".join(sorted(str(leaf.target) for leaf in doubtful)[:3])
    text = (
        f"only one arm depends on {names}: its gradient would be zero, not None, when that arm is "
        "not taken (allow_zero_grad permits it)"
    )
    lost = {}
    for node in selects:
        pairs = zip(node.args[1], node.args[2], strict=True)  # type: ignore[arg-type]
        if node in above and any((may[a] ^ may[b]) & doubtful for a, b in pairs):
            lost[node.meta[BRANCH].site] = text
    return lost


def _carries_grad(node: fx.Node) -> bool:
    value = tensor_value(node)
    if value is not None:
        return bool(value.requires_grad)
    parts = node.meta.get("example_value")
    if isinstance(parts, (tuple, list)):  # chunk, split, select: a call with several results
        return any(getattr(part, "requires_grad", False) for part in parts)
    return False
