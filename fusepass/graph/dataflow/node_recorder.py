"""New nodes in a graph that Dynamo recorded: beside the node they are for, fake values known."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import fx

from fusepass.graph.dataflow.memory import same_layout
from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.fx.graphs import call_target
from fusepass.torch_private.fx.tracing import faking

# --- Grad mode and autocast as they are at a place in a graph, for fake values made there ---------


@contextlib.contextmanager
def replay_modes() -> Iterator[Callable[[fx.Node], None]]:
    """Inside, handing over each node of a graph in order switches the modes as it would.

    The graph begins in the modes that are on outside, which are on again afterwards.
    """
    before = torch.is_grad_enabled()
    open_regions: dict[fx.Node, torch.autocast] = {}

    def follow(node: fx.Node) -> None:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name == "_set_grad_enabled":
            torch.set_grad_enabled(bool(node.args[0]))
        elif name == "_enter_autocast":
            device_type, dtype, enabled, _ = node.args
            region = torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=False)  # type: ignore[arg-type]
            region.__enter__()
            open_regions[node] = region
        elif name == "_exit_autocast" and node.args[0] in open_regions:
            open_regions.pop(node.args[0]).__exit__(None, None, None)  # type: ignore[arg-type]

    try:
        yield follow
    finally:
        for region in reversed(open_regions.values()):
            region.__exit__(None, None, None)
        torch.set_grad_enabled(before)


def autocasts_at(target: fx.Node) -> list[tuple[Any, ...]]:
    """Arguments of the autocast regions of its graph that a node stands in, outermost first."""
    open_regions: list[fx.Node] = []
    for node in target.graph.nodes:
        if node is target:
            break
        name = getattr(node.target, "__name__", "")
        if name == "_enter_autocast":
            open_regions.append(node)
        elif name == "_exit_autocast" and node.args and node.args[0] in open_regions:
            open_regions.remove(node.args[0])
    return [tuple(node.args) for node in open_regions]


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
            return call_target(node.target, args, kwargs)


def has_same_metadata(made: Any, value: torch.Tensor) -> bool:
    """Whether a fake tensor has the dtype, device, sizes, strides and need of grad of another."""
    kinds = (value.device, value.requires_grad)
    return same_layout(made, value) and (made.device, made.requires_grad) == kinds


# --- Copies that are still there when the compiled code runs --------------------------------------
# What a graph hands out is often a copy, because the memory itself is written later on. Inductor
# takes a ``clone`` for nothing to do and hands out what was cloned; when it later lets a write to a
# part of that memory happen in place, it does not look at what is handed out, which then shows the
# write. It knows ``copy_``, ``cat``, ``repeat``, ``pow`` and several more as copies, too, and sums
# with 0 and products with 1 change -0.0 or have no form for some dtypes.
#
# Turning a tensor around along no axis is none of these: a copy of any dtype, bit for bit, with the
# strides that a ``clone`` would have, and in the generated code it is nothing but a load and a
# store. A tensor without axes gets one for it, or torch would make a ``clone`` of the call.


class RecordCall(Protocol):
    """Records a call behind a node."""

    def __call__(self, place: fx.Node, target: Any, /, *args: Any) -> fx.Node: ...  # noqa: D102


def materialized_copy(node: fx.Node, record: RecordCall) -> fx.Node:
    """Record a copy of a tensor that may be handed out whatever is written later."""
    value = tensor_value(node)
    if value is not None and value.dim():
        return record(node, torch.flip, node, ())
    row = record(node, torch.reshape, node, (1,))
    copy = record(row, torch.flip, row, ())
    return record(copy, torch.reshape, copy, ())
