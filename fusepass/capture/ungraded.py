"""Tensors that autograd does not follow, and whether tracing an arm changed that.

``h = torch.zeros(4)``, then ``if p: h.copy_(w)``: after the arm h requires grad, in the fake tensor
that the other arm and everything behind the branch are traced with as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from fusepass.graph.canonical import tensor_value


@dataclass
class Ungraded:
    """The floating-point tensors of a graph that did not require grad when last looked at."""

    nodes: dict[fx.Node, None] = field(default_factory=dict)
    last: fx.Node | None = None

    def now(self, graph: fx.Graph) -> tuple[fx.Node, ...]:
        """Those that do not require grad now; looks at each node of the graph once."""
        if not torch.is_grad_enabled():
            return ()
        recent = []
        for node in reversed(graph.nodes):
            if node is self.last:
                break
            recent.append(node)
        self.last = recent[0] if recent else self.last
        candidates = [*self.nodes, *filter(_could_require, recent)]
        self.nodes = {node: None for node in candidates if not requires_grad(node)}
        return tuple(self.nodes)


def requires_grad(node: fx.Node) -> bool:
    """Whether the fake tensor of a node requires grad by now."""
    value = tensor_value(node)
    return value is not None and bool(value.requires_grad)


def _could_require(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and (value.dtype.is_floating_point or value.dtype.is_complex)
