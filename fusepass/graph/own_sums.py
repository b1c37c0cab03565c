"""Which sums of a product and a matrix are the program's own, and which Inductor has made.

``addmm`` rounds once, a product and a sum twice. Inductor's passes put one in the place of the
other, and with torch 2.11 nothing on the new call says so; so those of the program are marked
before these passes.
"""

from __future__ import annotations

import torch
from torch import fx

_MARK = "fusepass_own_sum"


def mark_own_sums(graph: fx.Graph) -> None:
    """Mark each ``addmm`` of a joint or forward graph, before Inductor's passes."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default):
        node.meta[_MARK] = True


def made_by_inductor(node: fx.Node) -> bool:
    """Whether an ``addmm`` of a graph behind Inductor's passes was a product and a sum."""
    return _MARK not in node.meta
