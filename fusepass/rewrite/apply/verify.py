"""What a rewrite must leave as it was: dtype, device, shape and strides of every value that stays.

Calls that are new, or whose arguments changed, are run again on fake tensors. All others are as
they were, so a graph costs as much to check as was changed in it. A value inside the graph may get
other strides (another attention kernel lays its result out another way) as long as what reads it,
run again in its turn, ends up with the strides it had.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import reshapes_its_operand, written_nodes
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.safety.gradient_gates import repropagate
from fusepass.torch_private.fx.graphs import has_unbacked_size, tree_flatten


class GraphFacts:
    """A graph before a rewrite, to hold the graph after it against."""

    def __init__(self, graph: fx.Graph, fake_mode: Any) -> None:
        self.fake_mode = fake_mode
        self.calls = {node: (node.target, node.args, node.kwargs) for node in graph.nodes}
        self.values = {node: _layout(tensor_value(node)) for node in graph.nodes}
        self.outputs = [self.values[node] for node in _outputs(graph)]
        self.rerun = fake_mode is not None and not any(map(_depends_on_place, graph.nodes))

    def check(self, graph: fx.Graph) -> None:
        """Compare, and note the values of new calls that came without.

        Raises:
            ValueError: a value that stays has another dtype, device, shape or stride.
            Exception: whatever a new call raises on fake tensors.
        """
        moved: dict[fx.Node, torch.Tensor] = {}  # values with other strides than before
        for node in graph.nodes:
            reads_moved = any(source in moved for source in node.all_input_nodes)
            if self.rerun and (reads_moved or self._is_changed(node)):
                self._check_call(node, moved)
        for node, value in moved.items():
            node.meta["example_value"] = value
        found = [_layout(tensor_value(node)) for node in _outputs(graph)]
        if len(found) != len(self.outputs):
            raise ValueError(f"the graph has {len(found)} outputs, had {len(self.outputs)}")
        for position, (before, after) in enumerate(zip(self.outputs, found, strict=True)):
            if before is not None and after is not None and not _equal(before, after):
                raise ValueError(
                    f"output {position} changed from {_text(before)} to {_text(after)}"
                )

    def _is_changed(self, node: fx.Node) -> bool:
        now = (node.target, node.args, node.kwargs)
        held = self.calls.get(node)
        return held is None or any(a is not b for a, b in zip(held, now, strict=True))

    def _check_call(self, node: fx.Node, moved: dict[fx.Node, torch.Tensor]) -> None:
        if node.op not in ("call_function", "call_method"):
            return
        noted = node.meta.get("example_value")
        known = all("example_value" in source.meta for source in node.all_input_nodes)
        if not known or not (noted is None or isinstance(noted, torch.Tensor)):
            if any(source in moved for source in node.all_input_nodes):
                raise ValueError(f"{node.name} reads a value whose strides changed")
            return
        if noted is not None and has_unbacked_size(noted):
            return
        if any(source in moved for source in written_nodes(node)):
            raise ValueError(f"{node.name} writes to a value whose strides changed")
        writes = bool(written_nodes(node))
        operands = {source: _alias(source, writes) for source in node.all_input_nodes}
        operands |= {source: moved[source] for source in operands if source in moved}
        value = repropagate([node], operands, self.fake_mode)[node]
        before = self.values.get(node) or _layout(noted)
        after = _layout(value)
        if before is not None and after is not None and not _equal(before, after):
            if not _equal(before[:3], after[:3]):
                raise ValueError(f"{node.name} is {_text(after)}, should be {_text(before)}")
            moved[node] = value
        if noted is None:
            node.meta["example_value"] = value


_Layout = tuple[torch.dtype, torch.device, tuple[Any, ...], tuple[Any, ...]]


def _depends_on_place(node: fx.Node) -> bool:
    """Whether a call makes the values of other calls depend on where they stand in the graph."""
    autocast = getattr(node.target, "__name__", "") in ("_enter_autocast", "_exit_autocast")
    return autocast or reshapes_its_operand(node)


def _alias(node: fx.Node, writes: bool) -> Any:
    """A node's value as a call may write to it without harm to what is on record."""
    value = tensor_value(node)
    if value is None:
        return node.meta["example_value"]
    return value.detach() if writes or value.requires_grad else value


def _outputs(graph: fx.Graph) -> list[fx.Node]:
    output = next(node for node in iter(reversed(graph.nodes)) if node.op == "output")
    return [leaf for leaf in tree_flatten(output.args)[0] if isinstance(leaf, fx.Node)]


def _layout(value: object) -> _Layout | None:
    if not isinstance(value, torch.Tensor):
        return None
    return value.dtype, value.device, tuple(value.shape), value.stride()


def _equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    # Sizes may be symbolic; as text they compare without adding a guard.
    return a[:2] == b[:2] and repr(a[2:]) == repr(b[2:])


def _text(layout: _Layout) -> str:
    dtype, device, shape, stride = layout
    return f"{dtype} {tuple(shape)} with strides {tuple(stride)} on {device}"
