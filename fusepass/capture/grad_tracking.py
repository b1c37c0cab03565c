"""Find older tensors that start to require grad while an arm is traced.

``h = torch.zeros(4)``, then ``if p: h.copy_(w)``: after the arm h requires grad, in the fake tensor
that the other arm and everything behind the branch are traced with as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.fx.graphs import requires_grad_outside


@dataclass(frozen=True)
class GraphBefore:
    """The contents of a graph at one moment.

    Attributes:
        nodes: floating-point tensors that did not require grad.
        inputs: all inputs it had.
    """

    nodes: tuple[fx.Node, ...]
    inputs: frozenset[fx.Node]

    def gained(self, graph: fx.Graph) -> bool:
        """Whether something requires grad by now that did not then.

        An input that came since then (a buffer first met in an arm) is held to the real tensor.
        """
        return any(map(requires_grad, self.nodes)) or any(
            requires_grad(node) and requires_grad_outside(node) is False
            for node in graph.find_nodes(op="placeholder")
            if node not in self.inputs
        )


@dataclass
class UntrackedTensors:
    """The floating-point tensors of a graph that did not require grad when last looked at."""

    nodes: dict[fx.Node, None] = field(default_factory=dict)
    inputs: dict[fx.Node, None] = field(default_factory=dict)
    last: fx.Node | None = None

    def now(self, graph: fx.Graph) -> GraphBefore | None:
        """The tensors that do not require grad now; None without grad mode."""
        if not torch.is_grad_enabled():
            return None
        recent = self._new_inputs(graph)
        for node in reversed(graph.nodes):
            if node is self.last or node.op == "placeholder":
                break
            recent.append(node)
        self.last = next(iter(reversed(graph.nodes)), None)
        candidates = [*self.nodes, *filter(_could_require, recent)]
        self.nodes = {node: None for node in candidates if not requires_grad(node)}
        return GraphBefore(tuple(self.nodes), frozenset(self.inputs))

    def _new_inputs(self, graph: fx.Graph) -> list[fx.Node]:
        """Inputs are recorded in front of everything, whenever they are first used."""
        inputs = graph.find_nodes(op="placeholder")
        new = [node for node in inputs if node not in self.inputs]
        self.inputs.update(dict.fromkeys(new))
        return new


def requires_grad(node: fx.Node) -> bool:
    """Whether the fake tensor of a node requires grad by now."""
    value = tensor_value(node)
    return value is not None and bool(value.requires_grad)


def _could_require(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and (value.dtype.is_floating_point or value.dtype.is_complex)
