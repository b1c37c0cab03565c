"""Put Python numbers into 0-d tensors, int64, float64 or bool, and read them from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusepass.capture.frame_state import Frame, Place
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.item_hooks import unread_number
from fusepass.capture.scalars.scalar import DTYPES, KNOWN_RANGE, Range, exactly, kind_of, of_size
from fusepass.capture.scalars.scalar_predicate import is_of_unknown_numbers, number_as_tensor
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack

_NAMES = {bool: "bool", int: "int", float: "float"}


@dataclass
class NumberTensors:
    """Puts numbers into tensors of one device."""

    device: torch.device

    def tensor_of(self, translator: Any, value: Any, kind: str | None) -> Any:
        """A tracked number as a tensor, and its range; None if it is none, or not of that kind."""
        value = stack.realized(value)
        constant, known = stack.constant_of(value)
        if constant:
            its = _NAMES.get(type(known))
            if its is None or kind not in (its, None):
                return None
            return self.full(translator, known), exactly(known)
        node = stack.number_node(value)
        if node is None or (kind is not None and kind_of(node) != kind):
            return None
        if not is_of_unknown_numbers(node):  # a size, or an integer that the program is given
            if kind_of(node) != "int":
                return None
            given = {"dtype": torch.int64, "device": self.device}
            args = ((), value.as_proxy())
            made = stack.wrap_call(translator, "call_function", torch.full, args, given)
            return made, of_size(node.meta["example_value"])
        return number_as_tensor(translator, node, self.device)

    def full(self, translator: Any, value: Any) -> Any:
        """A tracked 0-d tensor of a known number."""
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise Refusal(Reason.OVERFLOW, "an integer does not fit 64 bits")
        given = {"dtype": DTYPES[_NAMES[type(value)]], "device": self.device}
        return stack.wrap_call(translator, "call_function", torch.full, ((), value), given)


def number_kind(value: Any) -> str | None:
    """``bool``, ``int`` or ``float`` for a tracked number that can be carried; else None."""
    constant, known = stack.constant_of(value)
    if constant:
        return _NAMES.get(type(known))
    node = stack.number_node(value)
    if node is None or not (is_of_unknown_numbers(node) or kind_of(node) == "int"):
        return None
    return kind_of(node)


def read_number(
    translator: Any, frame: Frame, tensor: Any, place: Place, kind: str | None, known: Range | None
) -> Any:
    """The number in a tensor, unknown: of a kind, or that of the dtype that the program reads.

    ``known`` is what an integer can be.
    """
    number = unread_number(translator, frame, tensor.as_proxy(), place, kind)
    if known is not None:
        source: Any = stack.number_node(number).args[0]  # type: ignore[union-attr]
        source.meta[KNOWN_RANGE] = known
    return number
