"""A copy of a graph to go back to."""

from __future__ import annotations

import copy

from torch import fx


def copied(graph: fx.Graph) -> fx.Graph:
    """A copy with all that others have hung on the graph and its nodes, as Dynamo does."""
    duplicate = copy.deepcopy(graph)
    for old, new in [(graph, duplicate), *zip(graph.nodes, duplicate.nodes, strict=True)]:
        vars(new).update({k: v for k, v in vars(old).items() if k not in vars(new)})
    return duplicate
