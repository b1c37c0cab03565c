"""Writes calls into an ATen graph, and what happens to the channels of images as vectors."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.graph.conv_chain import Scaled
from fusepass.graph.epilogue_of_aten import VIEWS, calls_of, is_cast

_aten = torch.ops.aten
ADD, SUB, MUL, DIV = (getattr(_aten, name).Tensor for name in ("add", "sub", "mul", "div"))
_CALLS = {"add": ADD, "sub": SUB, "mul": MUL, "div": DIV}
_OPERATORS = {name: getattr(operator, name) for name in ("add", "sub", "mul")}
_OPERATORS["div"] = operator.truediv
CONVERT = torch.ops.prims.convert_element_type.default
RESHAPE, PERMUTE = _aten.reshape.default, _aten.permute.default
_RESHAPES = {f"aten.{name}.default" for name in (*VIEWS, "unsqueeze", "squeeze")}


@dataclass
class ChannelWriter:
    """Writes calls where the graph inserts at the moment, each one once.

    Attributes:
        graph: written to.
        behind: the dimensions of vectors behind the channels.
        seen: what was written.
    """

    graph: fx.Graph
    behind: tuple[int, ...] = ()
    seen: dict[Any, fx.Node] = field(default_factory=dict)

    def call(self, target: Any, *args: Any, given: Mapping[str, Any] | None = None) -> fx.Node:
        """A call, with the fake result that it has."""
        key = (target, str(args), str(given))
        if key not in self.seen:
            keywords = dict(given or {})
            node = self.graph.call_function(target, args, keywords)
            fakes = fx.map_arg((args, keywords), lambda one: one.meta["val"])
            node.meta["val"] = target(*fakes[0], **fakes[1])
            self.seen[key] = node
        return self.seen[key]

    def single(self, node: fx.Node) -> fx.Node:
        """A tensor in single precision, or in double if it is."""
        wide = node.meta["val"].dtype in (torch.float32, torch.float64)
        return node if wide else self.call(CONVERT, node, torch.float32)

    def vector(self, value: Any, channels: int) -> Any:
        """A number, or what has one per channel, in single precision.

        Written anew from where it is no longer computed element by element, so that all that is
        done to channels can be done where they are used.
        """
        if not isinstance(value, fx.Node):
            return value
        inner = value.args[0] if value.args else None
        if torch_private.operator_name(value.target) and isinstance(inner, fx.Node):
            same = torch_private.known_equal(inner.meta["val"].numel(), channels)
            if same and (is_cast(value) or str(value.target) in _RESHAPES):
                return self.vector(inner, channels)
            count = value.meta["val"].numel()
            whole = calls_of(value) is not None and torch_private.known_equal(count, channels)
            if whole and not value.kwargs:
                return self.call(value.target, *(self.vector(one, channels) for one in value.args))
        return self.single(self.call(RESHAPE, value, [channels, *self.behind]))

    def scale_and_shift(self, one: Scaled) -> tuple[Any, Any]:
        """What the changes of a convolution's channels come to, its bias included.

        Returns:
            Scale and shift: vectors, or the numbers 1.0 and 0.0 where nothing is done.
        """
        args: Any = one.conv.args
        channels = args[1].meta["val"].shape[0]
        scale: Any = 1.0
        shift: Any = 0.0 if args[2] is None else self.vector(args[2], channels)
        for change in one.changes:
            by = self.vector(change.by, channels)
            if change.op in ("mul", "div"):
                scale = self._computed(change.op, scale, by)
                # What is nothing stays so, even times what is not finite: eager has no such term.
                if isinstance(shift, fx.Node) or shift != 0.0:
                    shift = self._computed(change.op, shift, by)
            elif change.turned:
                scale = self._computed("mul", scale, -1.0)
                shift = self._computed("sub", by, shift)
            else:
                shift = self._computed(change.op, shift, by)
        return scale, shift

    def _computed(self, op: str, left: Any, right: Any) -> Any:
        """A call, or what it comes to where a number is 0 or 1 or both are numbers."""
        if isinstance(left, fx.Node):
            return self.call(_CALLS[op], left, right)
        if not isinstance(right, fx.Node):
            return _OPERATORS[op](left, right)
        if op == "div":
            op, right = "mul", self.call(_aten.reciprocal.default, right)
        if op == "sub":
            op, right = "add", self.call(MUL, right, -1.0)
        nothing = left == (1.0 if op == "mul" else 0.0)
        return right if nothing else self.call(_CALLS[op], right, left)
