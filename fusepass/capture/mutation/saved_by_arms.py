"""Keep a branch if an arm saves for its backward what the program writes later.

Autograd refuses a backward that reads a tensor written since it was saved. Both arms of a selection
save what they read, so a backward could fail because of the arm that eager did not take. A copy
for the arm would hide the error where eager did take it. So the branch is kept.
"""

from __future__ import annotations

from itertools import chain

from torch import fx

from fusepass.capture.nodes.select_node import BRANCH, Branch, select, sites_around
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name
from fusepass.graph.safety.saved_for_backward import values_saved_for_backward
from fusepass.report.decision import Reason

FAILS = "the backward would fail although eager did not take that arm"


def written_after_saved(graph: fx.Graph) -> dict[int, tuple[Reason, str]]:
    """Sites whose arms may save what is written afterwards, with the reason of each.

    Args:
        graph: the complete graph of a frame, selects still in it.
    """
    saved = saved_in_arms(graph)
    if not saved:
        return {}
    nodes, lost = list(graph.nodes), dict[int, tuple[Reason, str]]()
    history = WriteHistory(graph, nodes[-1])
    for node, kept, sites in saved:
        later = history.moments[node] + 1
        if history.is_written(kept, later, len(nodes)):
            why = (Reason.SIDE_EFFECT, _reason(node, kept, nodes[later:]))
            lost |= {site: why for site in sites if site not in lost}
    return lost


def saved_in_arms(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node, list[int]]]:
    """The nodes in arms with what their backwards read, and the sites they are in.

    Args:
        graph: the complete graph of a frame, selects still in it.
    """
    selects = [n for n in graph.nodes if n.target is select and BRANCH in n.meta]
    if not any(value.requires_grad for n in selects for value in n.meta["example_value"]):
        return []
    branches: dict[int, Branch] = {n.meta[BRANCH].site: n.meta[BRANCH] for n in selects}
    around = ((node, list(sites_around(node, branches))) for node in graph.nodes)
    inside = ((node, [one for one in sites if one in branches]) for node, sites in around if sites)
    return [
        (node, kept, sites)
        for node, sites in inside
        if sites
        for kept in values_saved_for_backward(node)
    ]


def sites_that_save(keeping: list[fx.Node]) -> tuple[int, ...]:
    """The sites of the nodes, if all of them stand in arms: eager may save nothing then."""
    joins = [n.meta[BRANCH] for n in keeping[0].graph.nodes if BRANCH in n.meta]
    branches: dict[int, Branch] = {branch.site: branch for branch in joins}
    around = [list(sites_around(node, branches)) for node in keeping]
    return tuple(dict.fromkeys(chain(*around))) if all(around) else ()


def _reason(node: fx.Node, kept: fx.Node, later: list[fx.Node]) -> str:
    keys = set(memories([kept]))
    writer = next(n for n in later if not keys.isdisjoint(memories(written_nodes(n))))
    return (
        f"{op_name(node)} in an arm may save a tensor that {op_name(writer)} writes later: {FAILS}"
    )
