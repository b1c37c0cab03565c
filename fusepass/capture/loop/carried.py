"""Represent the values that a round of a loop hands to the next one.

A tensor is carried as it is. A Python number is carried in a 0-d tensor: int64, float64 or bool.
Where the round loads its name the number is read from that tensor, as ``item()`` would, and stays
unread (capture/scalars); where the round binds the name the number is put into a tensor again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fusepass.capture.frame_state import Frame
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import is_kept, why_kept
from fusepass.capture.scalars.item_hooks import is_only_tested
from fusepass.capture.scalars.number_tensors import NumberTensors, number_kind, read_number
from fusepass.capture.scalars.scalar import Range
from fusepass.capture.source_position import here
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.fx.tensor_kinds import why_not_plain

LOADED = "fusepass_loaded"  # meta key of a number that is read because a loop carries it
_MOST = 2**52  # more rounds than any loop makes
_DRIFT = 2**20  # the most that an integer may change by in one round: then it never leaves int64


@dataclass
class Numbers(NumberTensors):
    """Puts the numbers of names into tensors, and reads them.

    Attributes:
        frame: of capture.
        ranges: what the number of a name can be when a round begins.
        smaller: names of integers that may become smaller than they began.
        others: names of numbers that a round binds to another kind of value.
    """

    frame: Frame
    ranges: dict[str, Range] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    smaller: set[str] = field(default_factory=set)

    def begins(self, name: str, value: Any, *, wide: bool) -> None:
        """Assume what an integer can be: it grows from where it begins, unless it is ``wide``."""
        _, known = stack.constant_of(value)
        if type(known) is int and abs(known) < _MOST // 2:
            self.ranges[name] = Range(-_MOST if wide else known, _MOST)
        elif number_kind(value) == "int":
            limits = torch.iinfo(torch.int64)
            self.ranges[name] = Range(limits.min, limits.max)

    def may_be(self, name: str, range_: Range) -> None:
        """Note what an integer that only rounds bind can be at one of their ends."""
        known = self.ranges.get(name, range_)
        least, most = min(known.least, range_.least), max(known.most, range_.most)
        self.ranges[name] = Range(least, most)

    def loader(self, name: str) -> Callable[..., Any]:
        """What reads the number that a name stands for."""

        def load(translator: Any, tensor: Any) -> Any:
            if not stack.is_any_tensor(stack.realized(tensor)):
                raise Refusal(Reason.PYTHON_VALUE, f"{name!r} is no number in each round")
            return self.read(translator, stack.realized(tensor), name)

        return load

    def read(self, translator: Any, tensor: Any, name: str, told: str = "") -> Any:
        """The number in a tensor; a truth value that is only tested stays a tensor.

        Args:
            translator: stands where the number is read.
            tensor: holds it.
            name: of the variable.
            told: the variable for a person, if it has no name in the program.
        """
        held = tensor.as_proxy().node.meta["example_value"]
        if held.dtype is torch.bool and is_only_tested(translator, self.frame):
            return tensor
        place = here(translator, "item", held.dtype)
        if is_kept(self.frame, place):
            code, text = why_kept(self.frame, place.rule, place.instruction) or (
                Reason.PYTHON_VALUE,
                "Python needs it",
            )
            raise Refusal(
                code, f"the number {told or repr(name)} changes from round to round: {text}"
            )
        known = self.ranges.get(name)
        number = read_number(translator, self.frame, tensor, place, None, known)
        stack.number_node(number).meta[LOADED] = True  # type: ignore[union-attr]
        return number

    def storer(self, name: str, kind: str) -> Callable[..., Any]:
        """What puts the number that a name is bound to into a tensor."""

        def store(translator: Any, value: Any) -> Any:
            found = self.tensor_of(translator, value, kind)
            if found is None:
                self.others.add(name)
                raise Refusal(Reason.PYTHON_VALUE, f"{name!r} becomes another kind of value")
            made, range_ = found
            assumed = self.ranges.get(name)
            if kind == "int" and assumed is not None:
                if range_.most > assumed.most + _DRIFT or range_.least < -_MOST - _DRIFT:
                    text = f"the integer {name!r} may outgrow 64 bits"
                    raise Refusal(Reason.OVERFLOW, text)
                if range_.least < assumed.least and assumed.least > -_MOST:
                    self.smaller.add(name)
                    text = f"the integer {name!r} may become smaller than it began"
                    raise Refusal(Reason.OVERFLOW, text)
            return made

        return store


def check_tensor(value: Any, name: str) -> None:
    """Refuse a tensor that cannot be carried.

    Raises:
        Refusal: it is a subclass, sparse, or a lazy view.
    """
    why = why_not_plain(value)
    if why is not None:
        raise Refusal(Reason.PYTHON_VALUE, f"{name!r} {why}")
    held = value.as_proxy().node.meta["example_value"]
    if held.is_conj() or held.is_neg():
        raise Refusal(Reason.STRIDE_MISMATCH, f"{name!r} is a lazily conjugated or negated view")
    if held.requires_grad and torch.is_grad_enabled():
        text = f"{name!r} requires grad, and the loop would have to be differentiated"
        raise Refusal(Reason.NO_GRADIENT, text)
