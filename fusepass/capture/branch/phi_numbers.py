"""Make one number of a value that is one of two numbers, where code computes with it.

``best = self.best; if loss < best: best = loss.item()`` leaves a number that one arm read, or
another one. As a 0-d tensor it is selected by the predicate, so that what is computed from it is
computed once.
"""

from __future__ import annotations

from typing import Any

import torch

from fusepass.capture.branch.known_outcomes import tested_now
from fusepass.capture.frame_state import Frame
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.deferred_items import made_of
from fusepass.capture.scalars.number_tensors import NumberTensors, number_kind, read_number
from fusepass.capture.scalars.scalar import DTYPES, Range
from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.phi import is_phi, leaves_of

_COMPUTES = ("BINARY_OP", "CALL", "CALL_KW", "COMPARE_OP", "UNARY_NEGATIVE")


def put_numbers(translator: Any, frame: Frame, places: list[int]) -> bool:
    """Put a number in place of each value on the stack that is one of two; whether all are."""
    if translator.current_instruction.opname not in _COMPUTES:
        return False
    held = translator.stack
    found = {place: _number(translator, frame, held[place]) for place in places}
    if not found or any(number is None for number in found.values()):
        return False
    for place, number in found.items():
        held[place] = number
    return True


def _number(translator: Any, frame: Frame, phi: Any) -> Any:
    """The number that a value is, as an unknown one; None if it may be something else."""
    key = "number", id(phi), tuple(frame.arms)
    if key not in frame.folded:
        frame.folded[key] = _made(translator, frame, phi), phi  # which stays alive
    return frame.folded[key][0]


def _made(translator: Any, frame: Frame, phi: Any) -> Any:
    leaves = [stack.realized(leaf) for leaf in leaves_of(phi)]
    kinds = {number_kind(leaf) for leaf in leaves}
    nodes = [node for node in map(stack.number_node, leaves) if node is not None]
    read = [one for one in made_of(nodes) if one in frame.items]
    if len(kinds) != 1 or None in kinds or not read:
        return None
    (kind,) = kinds
    device = tensor_value(read[0].args[0]).device  # type: ignore[union-attr]
    try:
        made, known = _Selected(translator, frame, NumberTensors(device), str(kind)).of(phi)
    except Refusal:
        return None
    limits = known if kind == "int" else None
    return read_number(translator, frame, made, frame.items[read[0]], kind, limits)


class _Selected:
    """The tensor that a value is, selected by the predicates."""

    def __init__(self, translator: Any, frame: Frame, numbers: NumberTensors, kind: str) -> None:
        self.translator, self.frame, self.numbers, self.kind = translator, frame, numbers, kind
        self.made: dict[int, tuple[Any, Range]] = {}

    def of(self, value: Any) -> tuple[Any, Range]:
        if id(value) not in self.made:
            self.made[id(value)] = self._of_two(value) if is_phi(value) else self._leaf(value)
        return self.made[id(value)]

    def _of_two(self, phi: Any) -> tuple[Any, Range]:
        (taken, one), (other, two) = self.of(phi.taken), self.of(phi.other)
        tested = tested_now(self.frame, phi)
        args = tuple(value.as_proxy() for value in (tested, taken, other))
        made = stack.wrap_call(self.translator, "call_function", torch.where, args, {})
        return made, Range(min(one.least, two.least), max(one.most, two.most))

    def _leaf(self, value: Any) -> tuple[Any, Range]:
        made, known = self.numbers.tensor_of(self.translator, value, self.kind)
        dtype = DTYPES[self.kind]
        if tensor_value(made.as_proxy().node).dtype != dtype:  # type: ignore[union-attr]
            args = made.as_proxy(), dtype
            made = stack.wrap_call(self.translator, "call_method", "to", args, {})
        return made, known
