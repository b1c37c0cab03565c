"""How to make an exception from values known only when the graph has run.

A recipe is the exception's construction as Dynamo traced it, with places where tensors and numbers
of the graph go. It is carried out with Python's own functions on real values, so that the text is
eager's: ``f"{x.max():.3f}"`` becomes ``str.format("{:.3f}", <operand 0>)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.capture.refusal import Refusal
from fusepass.graph.canonical import tensor_value
from fusepass.report.decision import Reason


@dataclass(frozen=True)
class Known:
    """A value known when the program was traced."""

    value: Any


@dataclass(frozen=True)
class Operand:
    """The tensor or number at a position among the operands of the sink."""

    position: int


@dataclass(frozen=True)
class Made:
    """What a function, class or container type makes of other values; a text names a method."""

    function: Any
    args: tuple[Recipe, ...]
    kwargs: tuple[tuple[str, Recipe], ...] = ()


# Calls that look at a 0-d tensor for its number only, not for its gradient.
_NUMBERS_ONLY = ("item", "tolist", int, float, bool, format)
Recipe = Known | Operand | Made


def made(recipe: Recipe, operands: Sequence[Any]) -> Any:
    """Carry out a recipe."""
    if isinstance(recipe, Known):
        return recipe.value
    if isinstance(recipe, Operand):
        return operands[recipe.position]
    args = [made(part, operands) for part in recipe.args]
    if recipe.function in (tuple, list, dict, torch.Size):
        return recipe.function(args)
    kwargs = {name: made(part, operands) for name, part in recipe.kwargs}
    if isinstance(recipe.function, str):
        return getattr(args[0], recipe.function)(*args[1:], **kwargs)
    return recipe.function(*args, **kwargs)


class Writer:
    """Writes recipes for tracked values and collects the graph nodes they need.

    Attributes:
        nodes: the operands, in order, each once.
        shows_grad: positions of tensors whose text shows ``requires_grad`` or ``grad_fn``.
        shows_whole: positions of tensors of which more is looked at than a number.
    """

    def __init__(self) -> None:
        self.nodes: list[fx.Node] = []
        self.shows_grad: set[int] = set()
        self.shows_whole: set[int] = set()

    def exception(self, raised: Any) -> Recipe:
        """The recipe of what a ``raise`` statement was given.

        Raises:
            Refusal: it was not made here, or of something that cannot be kept for later.
        """
        parts = torch_private.exception_parts(raised)
        if parts is None:
            raise Refusal(Reason.RAISES, "the exception raised was not made by the raising arm")
        kind, args, kwargs = parts
        return self._call(kind, args, kwargs)

    def value(self, tracked: Any, *, as_number: bool = False) -> Recipe:
        """The recipe of one tracked value.

        Args:
            tracked: the value.
            as_number: of a 0-d tensor only the number is looked at.

        Raises:
            Refusal: it cannot be kept for later.
        """
        tracked = torch_private.realized(tracked)
        constant, known = torch_private.constant_or_class(tracked)
        if constant:
            return Known(known)
        if torch_private.is_any_tensor(tracked):
            return self._tensor(tracked, as_number)
        number = torch_private.size_or_scalar(tracked)
        if number is not None:
            return Operand(self._position(number))
        late = torch_private.late_parts(tracked)
        if late is not None:
            return self._call(*late)
        held = torch_private.container_items(tracked)
        if held is None:
            kind = type(tracked).__name__.removesuffix("Variable")
            raise Refusal(Reason.RAISES, f"the message needs a value that cannot be kept: {kind}")
        if held[0] is dict:
            pairs = [Made(tuple, tuple(map(self.value, pair))) for pair in held[1]]
            return Made(dict, tuple(pairs))
        return Made(held[0], tuple(map(self.value, held[1])))

    def _call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Recipe:
        number = function in _NUMBERS_ONLY
        if function is str.format:
            number = "!" not in torch_private.constant_or_class(args[0])[1]
        return Made(
            function,
            tuple(self.value(arg, as_number=number) for arg in args),
            tuple((name, self.value(arg, as_number=number)) for name, arg in kwargs.items()),
        )

    def _tensor(self, tracked: Any, as_number: bool) -> Recipe:
        if not torch_private.is_plain_tensor(tracked):
            raise Refusal(Reason.RAISES, "the message needs a tensor subclass or a sparse tensor")
        node = tracked.as_proxy().node
        position = self._position(node)
        value = tensor_value(node)
        if value is not None and not (as_number and value.dim() == 0):
            self.shows_whole.add(position)
            if value.requires_grad:
                self.shows_grad.add(position)
        return Operand(position)

    def _position(self, node: fx.Node) -> int:
        if node not in self.nodes:
            self.nodes.append(node)
        return self.nodes.index(node)
