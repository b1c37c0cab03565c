"""Write calls into an ATen graph that compute a vector per channel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion.aten_to_epilogue import FLOATS, VIEWS, calls_of, is_cast, widened
from fusepass.fusion.conv.chain import ScaledConv
from fusepass.torch_private.fx.graphs import known_equal, operator_name

_aten = torch.ops.aten
ADD, SUB, MUL, DIV = (getattr(_aten, name).Tensor for name in ("add", "sub", "mul", "div"))
_CALLS = {"add": ADD, "sub": SUB, "mul": MUL, "div": DIV}
_FLOATS = {*FLOATS, torch.float64}
CONVERT = torch.ops.prims.convert_element_type.default
RESHAPE, PERMUTE = _aten.reshape.default, _aten.permute.default
_RESHAPES = {f"aten.{name}.default" for name in (*VIEWS, "unsqueeze", "squeeze")}


@dataclass
class ChannelWriter:
    """Writes calls where the graph inserts at the moment.

    Attributes:
        graph: written to.
        behind: the dimensions of vectors behind the channels.
        seen: what was written.
    """

    graph: fx.Graph
    behind: tuple[int, ...] = ()
    seen: dict[Any, fx.Node] = field(default_factory=dict)

    def call(self, target: Any, *args: Any) -> fx.Node:
        """A call, with the fake result that it has; what was written before where it is equal."""
        key = (target, str(args))
        if key not in self.seen:
            self.seen[key] = self.fresh_call(target, *args)
        return self.seen[key]

    def fresh_call(self, target: Any, *args: Any, **given: Any) -> fx.Node:
        """A call of its own: two equal results of a program are two tensors."""
        node = self.graph.call_function(target, args, given)
        fakes = fx.map_arg((args, given), lambda one: one.meta["val"])
        node.meta["val"] = target(*fakes[0], **fakes[1])
        return node

    def to_float32(self, node: fx.Node) -> fx.Node:
        """A tensor in single precision, or in double if it is; truth values as they are."""
        kept = node.meta["val"].dtype in (torch.float32, torch.float64, torch.bool)
        return node if kept else self.call(CONVERT, node, torch.float32)

    def to_dtype(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """A tensor in a dtype; what was only widened from that is taken as it was."""
        if node.meta["val"].dtype is dtype:
            return node
        source = widened(node)
        if source is not None and source.meta["val"].dtype is dtype:
            return source
        return self.call(CONVERT, node, dtype)

    def channel_vector(self, value: Any, channels: int) -> Any:
        """A number, or what has one per channel, in single precision.

        Written anew from where it is no longer computed element by element, so that all that is
        done to channels can be done where they are used.
        """
        if not isinstance(value, fx.Node):
            return value
        if _has_numel(value, 1):
            return self.to_float32(self.call(RESHAPE, value, [1, *(1 for _ in self.behind)]))
        inner = value.args[0] if value.args else None
        if operator_name(value.target) and isinstance(inner, fx.Node):
            same = _has_numel(inner, channels)
            if same and (_is_rounding(value) or str(value.target) in _RESHAPES):
                return self.channel_vector(inner, channels)
            given = [one for one in value.args if isinstance(one, fx.Node)]
            whole = calls_of(value) is not None and _has_numel(value, channels)
            if whole and not value.kwargs and all(_is_vector(one, channels) for one in given):
                return self.call(
                    value.target, *(self.channel_vector(one, channels) for one in value.args)
                )
        return self.to_float32(self.call(RESHAPE, value, [channels, *self.behind]))

    def scale_and_shift(self, one: ScaledConv) -> tuple[Any, Any]:
        """What the changes of a convolution's channels come to, its bias included.

        Returns:
            Scale and shift: vectors, or the numbers 1.0 and 0.0 where nothing is done.
        """
        args: Any = one.conv.args
        channels = args[1].meta["val"].shape[0]
        scale: Any = 1.0
        shift: Any = 0.0 if args[2] is None else self.channel_vector(args[2], channels)
        for change in one.changes:
            by = self.channel_vector(change.by, channels)
            if change.op in ("mul", "div"):
                scale = self._fold_or_call(change.op, scale, by)
                # What is nothing stays so, even times what is not finite: eager has no such term.
                if isinstance(shift, fx.Node) or shift != 0.0:
                    shift = self._fold_or_call(change.op, shift, by)
            elif change.reversed:
                scale = self._fold_or_call("mul", scale, -1.0)
                shift = self._fold_or_call("sub", by, shift)
            else:
                shift = self._fold_or_call(change.op, shift, by)
        return scale, shift

    def _fold_or_call(self, op: str, left: Any, right: Any) -> Any:
        """A call, or what it comes to where a number is 0 or 1 or both are numbers."""
        if isinstance(left, fx.Node):
            return self.call(_CALLS[op], left, right)
        if not isinstance(right, fx.Node):
            return _compute_in_float32(_CALLS[op], left, right)
        if op == "div":
            op, right = "mul", self.call(_aten.reciprocal.default, right)
        if op == "sub":
            op, right = "add", self.call(MUL, right, -1.0)
        nothing = left == (1.0 if op == "mul" else 0.0)
        return right if nothing else self.call(_CALLS[op], right, left)


def _compute_in_float32(call: Any, left: float, right: float) -> float:
    """What comes of two numbers in single precision, as of tensors: NaN or infinity, too."""
    return float(call(*(torch.tensor(one, dtype=torch.float32) for one in (left, right))))


def _is_rounding(node: fx.Node) -> bool:
    """Whether a node casts from one floating dtype to another, which single precision holds."""
    return is_cast(node) and {node.meta["val"].dtype, node.args[0].meta["val"].dtype} <= _FLOATS  # type: ignore[union-attr]


def _has_numel(node: fx.Node, count: int) -> bool:
    return known_equal(node.meta["val"].numel(), count)


def _is_vector(node: fx.Node, channels: int) -> bool:
    """Whether a node can be an operand of what is written anew: one number per channel, or one."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dtype not in (*FLOATS, torch.float64, torch.bool):
        return False
    return _has_numel(node, channels) or _has_numel(node, 1)
