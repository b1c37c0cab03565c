"""Represent a Python number while it is lowered: kind, possible values, 0-d tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars.value_range import Range, exactly, of_size
from fusepass.graph.dataflow.node_recorder import NodeRecorder, materialized_copy
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import unknown_sizes

_KINDS = {
    torch.SymBool: "bool",
    torch.SymInt: "int",
    torch.SymFloat: "float",
    bool: "bool",
    int: "int",
    float: "float",
}

DTYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64}
MIXED = "it may be an integer or a float"
READ_LATE = "fusepass_read_late"  # meta key of a tensor made of a number only to leave the graph


class Unfit(Exception):
    """A use of a number has no tensor form; carries the reason."""

    def __init__(self, code: Reason, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass
class ScalarTensor:
    """A number that is computed on the device.

    Attributes:
        node: the number in the graph.
        kind: ``bool``, ``int`` or ``float``.
        range: what it can be.
        roots: the numbers it is computed from.
        device: where it is, if nothing says otherwise.
        home: records the tensor that holds it on a device, exactly, in a dtype that can; None
            where it is on another device.
        recorder: of the graph.
        mixed: whether it may be an integer although ``kind`` is ``float`` (``max(s, 1)``).
        operands: numbers whose tensors ``home`` asks for.
    """

    node: fx.Node
    kind: str
    range: Range
    roots: tuple[fx.Node, ...]
    device: torch.device
    home: Callable[[torch.device], fx.Node | None]
    recorder: NodeRecorder
    mixed: bool = False
    operands: tuple[ScalarTensor, ...] = ()
    _homes: dict[torch.device, fx.Node | None] = field(default_factory=dict)
    _casts: dict[tuple[torch.device, torch.dtype], fx.Node] = field(default_factory=dict)

    def on(self, device: torch.device, dtype: torch.dtype) -> fx.Node:
        """The number as a 0-d tensor of a device and dtype.

        Raises:
            Unfit: it is on another device.
        """
        grad, self.recorder.grad = self.recorder.grad, False
        try:
            return self._on(device, dtype)
        finally:
            self.recorder.grad = grad

    def dtype_on(self, device: torch.device) -> torch.dtype:
        """The exact dtype of the tensor on that device; :meth:`on` was called before."""
        return tensor_value(self._homes[device]).dtype  # type: ignore[union-attr]

    def out(self) -> fx.Node:
        """The number as a tensor of its own that can leave the graph, to be read with ``item``.

        Raises:
            Unfit: it may be an integer or a float.
        """
        if self.mixed:
            raise Unfit(Reason.PYTHON_VALUE, MIXED)
        tensor = self.on(self.device, DTYPES[self.kind])
        return materialized_copy(tensor, self.recorder.after)

    def _on(self, device: torch.device, dtype: torch.dtype) -> fx.Node:
        for number in self._without_home(device):
            number._homes[device] = number.home(device)
        home = self._homes[device]
        if home is None:
            raise Unfit(Reason.PYTHON_VALUE, f"it is used on another device, {device}")
        if tensor_value(home).dtype == dtype:  # type: ignore[union-attr]
            return home
        if (device, dtype) not in self._casts:
            self._casts[device, dtype] = self.recorder.after(home, "to", home, dtype)
        return self._casts[device, dtype]

    def _without_home(self, device: torch.device) -> list[ScalarTensor]:
        """The numbers that this one is made of, each behind its operands: a sum may be long."""
        found: dict[int, ScalarTensor] = {}
        todo = [self]
        while todo:
            number = todo[-1]
            missing = [
                one for one in number.operands if device not in one._homes and id(one) not in found
            ]
            if missing:
                todo += missing
            elif device not in todo.pop()._homes:
                found[id(number)] = number
        return list(found.values())


def kind_of(value: Any) -> str | None:
    """``bool``, ``int`` or ``float`` for a number, or the node of one; None for anything else."""
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value")
    return _KINDS.get(type(value))


def operand(value: Any, held: dict[fx.Node, ScalarTensor]) -> ScalarTensor | fx.Node | float:
    """An operand of arithmetic: a number that is held, a size of the graph, or a known number.

    Raises:
        Unfit: it is something else.
    """
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, fx.Node):
        if value in held:
            return held[value]
        number = value.meta.get("example_value")
        if isinstance(number, (torch.SymInt, int)) and not unknown_sizes(number):
            return value
    raise Unfit(Reason.PYTHON_VALUE, "it is combined with a value that only Python has")


def range_of(side: ScalarTensor | fx.Node | float) -> Range:
    """The range of an operand."""
    if isinstance(side, ScalarTensor):
        return side.range
    return of_size(side.meta["example_value"]) if isinstance(side, fx.Node) else exactly(side)


def kind_of_operand(side: ScalarTensor | fx.Node | float) -> str:
    """``bool``, ``int`` or ``float``."""
    return side.kind if isinstance(side, ScalarTensor) else kind_of(side) or "int"
