"""Copy a predicate that is written after its branch."""

from __future__ import annotations

from typing import Any

from torch import fx

from fusepass.capture.nodes.select_node import ARM, BRANCH, Branch, sites_around
from fusepass.capture.scalars.arm_scalars import NUMBER
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import tensor_value


def copy_predicates(graph: fx.Graph, fake_mode: Any) -> None:
    """Copy, in front of its branch, each tested tensor that is written afterwards.

    ``if not self.ready: …; self.ready.fill_(True)``. Selections read the predicate where the arms
    meet, and backward reads it again.
    """
    nodes, keys = list(graph.nodes), (BRANCH, NUMBER)
    joins = [(node, node.meta[key]) for node in nodes for key in keys if key in node.meta]
    if not joins:
        return
    history = WriteHistory(graph)
    branches: dict[int, Branch] = {branch.site: branch for _, branch in joins}
    first: dict[int, fx.Node] = {}
    for node in nodes:
        own = [node.meta[key].site for key in keys if key in node.meta]
        for site in (*own, *sites_around(node, branches)):
            first.setdefault(site, node)
    copies: dict[int, fx.Node] = {}
    for join, branch in joins:
        tested: Any = join.args[0]
        start = history.moments[first[branch.site]]
        if not history.is_written(tested, start, len(nodes)):
            continue
        if branch.site not in copies:
            with graph.inserting_before(first[branch.site]):
                copy = graph.call_method("clone", (tested,))
            copy.meta = {} if branch.outer is None else {ARM: branch.outer}
            with fake_mode:
                copy.meta["example_value"] = tensor_value(tested).clone()  # type: ignore[union-attr]
            copies[branch.site] = copy
        join.update_arg(0, copies[branch.site])
