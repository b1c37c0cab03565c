"""Represent a selection ``x[mask]`` as a tensor of known size: all elements, and the mask.

``x[mask]`` has a size that only the data know. What is computed from it element by element, or row
by row, can be computed for all elements as well, as long as in the end only those under the mask
count: in a sum, in a store through the same mask. The dimensions of the mask are one dimension of
what it selects; here they are flattened into one, so that every call keeps its dimensions.

Gradients: elements outside the mask get none, so that NaN cannot come from what eager does not
compute. ``where(mask, x, x.detach())`` is ``x`` and passes gradients on inside the mask only.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.capture.masks.masked_store import add_call, fake_of, gathered, mask_of
from fusepass.capture.refusal import Refusal
from fusepass.graph.dataflow.value_numbering import same_value
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import has_unbacked_size, known_equal

SPREADS = ("std", "var")
WARNED = "fusepass_warned"  # meta key of a variance: eager's warning of too few elements is written


@dataclass(frozen=True, eq=False)
class Selection:
    """What a mask held when it selected.

    Attributes:
        mask: the node it was asked of.
        moment: when.
        flat: its elements then, a bool tensor of one dimension.
    """

    mask: fx.Node
    moment: int
    flat: fx.Node


@dataclass(frozen=True, eq=False)
class FullTensor:
    """A selected tensor computed for all elements.

    Attributes:
        node: the computation; the elements selected from lie along dimension ``front``.
        selection: which of them count.
        front: the dimensions in front of it.
        exact: whether the elements that count are those of eager to the last bit.
    """

    node: fx.Node
    selection: Selection
    front: int
    exact: bool = True

    @property
    def value(self) -> torch.Tensor:
        """Its fake tensor."""
        return fake_of(self.node)

    @property
    def after(self) -> int:
        """The dimensions behind the one that the elements lie along."""
        return self.value.dim() - self.front - 1


@dataclass
class MaskLowering:
    """The selections among some nodes, and what was computed for them so far.

    Attributes:
        fake_mode: the mode fake values are computed under.
        history: of the graph, as it was before anything was made.
        exact: whether stores must leave the very bits of eager.
        whole: selected tensors of the program.
        parts: tuples of selected tensors, of which the node is the tuple.
        seen: every node that was computed for all elements, and the selection it is of.
        made: the calls made in front of a node.
        replaced: what a node becomes: the last of the calls made for it, or nothing.
    """

    fake_mode: Any
    history: WriteHistory
    exact: bool
    whole: dict[fx.Node, FullTensor] = field(default_factory=dict)
    parts: dict[fx.Node, tuple[fx.Node, list[FullTensor]]] = field(default_factory=dict)
    seen: dict[fx.Node, Selection] = field(default_factory=dict)
    made: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    replaced: dict[fx.Node, fx.Node | None] = field(default_factory=dict)

    def add(self, like: fx.Node, target: Any, /, *args: Any, **kwargs: Any) -> fx.Node:
        """Record a call in front of a node, in its place."""
        with like.graph.inserting_before(like):
            return add_call(
                self.made.setdefault(like, []), like, self.fake_mode, target, args, kwargs
            )

    def again(self, node: fx.Node, target: Any, instead: Mapping[Any, fx.Node]) -> fx.Node:
        """Record the call of a node on other operands in front of it."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: instead.get(n, n))
        return self.add(node, target, *args, **kwargs)

    def take_back(self, node: fx.Node) -> None:
        """Erase what was recorded in front of a node."""
        for made in reversed(self.made.pop(node, [])):
            made.graph.erase_node(made)

    def lower_gather(self, node: fx.Node) -> FullTensor | None:
        """Lower ``x[mask]`` or ``masked_select(x, mask)`` to all elements; None for others."""
        source: Any
        name = op_name(node)
        source, index = gathered(node) or (None, None)
        value = tensor_value(source)
        found = mask_of(value, index)
        if value is None or found is None or has_unbacked_size(value):
            return None
        mask, front, after = found
        dims = fake_of(mask).dim()
        if dims == 0 or value.dtype.is_complex or (name == "masked_select" and after):
            raise Refusal(Reason.SIZE, f"what {name} selects has a size that only the data know")
        if fake_of(mask).device != value.device:
            raise Refusal(Reason.DEVICE_MISMATCH, "the mask is on another device")
        selection = self.selected_by(node, mask)
        trained = fake_of(node).requires_grad
        if not trained and self._written_later(source, node):
            source = self.add(node, "clone", source)
        if dims > 1:
            source = self.add(node, "flatten", source, front, front + dims - 1)
        if trained:
            source = self.gate_gradient(node, source, selection, after)
        return FullTensor(source, selection, front)

    def selected_by(self, node: fx.Node, mask: fx.Node) -> Selection:
        """What a mask holds when a node reads it."""
        flat = mask
        if torch.is_grad_enabled() or self._written_later(mask, node):
            flat = self.add(node, "clone", mask)  # a backward reads it again
        if fake_of(mask).dim() > 1:
            flat = self.add(node, "flatten", flat)
        return Selection(mask, self.history.moments[node], flat)

    def _written_later(self, node: fx.Node, reader: fx.Node) -> bool:
        return self.history.is_written(node, self.history.moments[reader], sys.maxsize)

    def same_selection(self, a: Selection, b: Selection) -> bool:
        """Whether two masks held the same when they selected."""
        return a is b or same_value(a.mask, b.mask, self.history, (a.moment, b.moment))

    def mask_for(self, node: fx.Node, selection: Selection, after: int) -> fx.Node:
        """The mask, to broadcast against a tensor with so many dimensions behind it."""
        mask = selection.flat
        for _ in range(after):
            mask = self.add(node, "unsqueeze", mask, -1)
        return mask

    def gate_gradient(
        self, node: fx.Node, source: fx.Node, selection: Selection, after: int
    ) -> fx.Node:
        """The same value, whose gradient is that of the elements selected."""
        held = self.add(node, "detach", source)
        return self.add(node, torch.where, self.mask_for(node, selection, after), source, held)

    def fill_unselected(self, node: fx.Node, whole: FullTensor, number: Any) -> fx.Node:
        """What was selected, with a number for all other elements."""
        mask = self.mask_for(node, whole.selection, whole.after)
        return self.add(node, torch.where, mask, whole.node, number)

    def count_of(self, node: fx.Node, selection: Selection) -> fx.Node:
        """How many elements are selected: int64, no dimensions."""
        return self.add(node, "sum", selection.flat)

    def total_size(self, node: fx.Node, whole: FullTensor, dims: list[int]) -> fx.Node:
        """How many elements a reduction of what was selected takes: int64, no dimensions."""
        count = self.count_of(node, whole.selection)
        for dim in dims:
            size: Any = whole.value.shape[dim]
            if dim != whole.front and not known_equal(size, 1):
                if not isinstance(size, int):
                    size = self.add(node, torch.ops.aten.sym_size.int, whole.node, dim)
                count = self.add(node, operator.mul, count, size)
        return count


def check_variance_warning(node: fx.Node) -> None:
    """Refuse a variance whose warning of too few elements nobody would write."""
    if WARNED not in node.meta:
        text = "eager warns where a mask selects too few for a variance, and that cannot wait"
        raise Refusal(Reason.SIDE_EFFECT, text)
