"""New nodes in a graph that Dynamo recorded: beside the node they are for, fake values known."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.fx.tracing import faking

# What a node says about where it comes from, the arm of a branch it stands in included.
_CARRIED = ("stack_trace", "nn_module_stack", "source_fn_stack", "custom", "fusepass_arm")


class NodeRecorder:
    """Adds calls to a graph and computes their fake values.

    Args:
        graph: the complete graph of a frame.
        fake_mode: the mode its fake tensors compute under.
        at_end: whether calls go to the end of the graph, which is still being recorded.

    Attributes:
        grad: whether autograd is on where the next calls stand.
    """

    def __init__(self, graph: fx.Graph, fake_mode: Any, *, at_end: bool = False) -> None:
        self.graph = graph
        self.grad = False
        self._fake_mode = fake_mode
        self._at_end = at_end

    def before(self, place: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A call in front of ``place``: of a function, or of a method if ``target`` is a text."""
        if self._at_end:
            return self._insert(place, target, args, kwargs)
        with self.graph.inserting_before(place):
            return self._insert(place, target, args, kwargs)

    def after(self, place: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """The same behind ``place``."""
        if self._at_end:
            return self._insert(place, target, args, kwargs)
        with self.graph.inserting_after(place):
            return self._insert(place, target, args, kwargs)

    def _insert(self, place: fx.Node, target: Any, args: Any, kwargs: Any) -> fx.Node:
        kind = "call_method" if isinstance(target, str) else "call_function"
        node = self.graph.create_node(kind, target, args, kwargs)
        node.meta = {key: place.meta[key] for key in _CARRIED if key in place.meta}
        node.meta["example_value"] = self.fake(node)
        return node

    def fake(self, node: fx.Node) -> Any:
        """What the fake values of its arguments make of a call."""
        args = fx.map_arg(node.args, lambda n: n.meta["example_value"])
        kwargs = fx.map_arg(node.kwargs, lambda n: n.meta["example_value"])
        with faking(self._fake_mode), torch.set_grad_enabled(self.grad):
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]


def has_same_metadata(made: Any, value: torch.Tensor) -> bool:
    """Whether a fake tensor has the dtype, device, sizes, strides and need of grad of another."""
    equal = known_equal
    return (
        isinstance(made, torch.Tensor)
        and (made.dtype, made.device) == (value.dtype, value.device)
        and made.dim() == value.dim()
        and made.requires_grad == value.requires_grad
        and all(equal(a, b) for a, b in zip(made.shape, value.shape, strict=True))
        and all(equal(a, b) for a, b in zip(made.stride(), value.stride(), strict=True))
    )
