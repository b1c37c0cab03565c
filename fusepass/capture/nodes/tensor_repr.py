"""Print a tensor as eager would, from a tensor that only has the same contents.

What a compiled graph hands out has no ``grad_fn`` of eager's, and what was copied to the host has
lost its device. Torch's own printing asks the tensor for both, so a tensor that answers as eager's
would is printed as eager's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.torch_private.fx.scalar_repr import text_of_number, without_overrides


@dataclass(frozen=True)
class Look:
    """What the text of a tensor shows besides its contents.

    Attributes:
        device: where it is.
        grad_fn: name of the class of its ``grad_fn``, or None.
        requires_grad: whether it requires grad.
        parameter: whether it is an ``nn.Parameter``.
    """

    device: torch.device
    grad_fn: str | None = None
    requires_grad: bool = False
    parameter: bool = False


@dataclass(frozen=True)
class LookChoice:
    """One of two looks: that of what the arm taken left.

    Attributes:
        test: position, among the operands of the text, of the 0-d bool that the branch tests.
        taken: the look where it holds.
        other: the look where it does not.
    """

    test: int
    taken: Look | LookChoice
    other: Look | LookChoice

    def made(self, operands: Sequence[Any]) -> Look:
        """The look, now that the operands are known."""
        chosen = self.taken if operands[self.test] else self.other
        return chosen.made(operands) if isinstance(chosen, LookChoice) else chosen


def look_of(tensor: torch.Tensor) -> Look:
    """What the text of a real tensor shows."""
    function: Any = tensor.grad_fn
    name = None if function is None else type(function).__name__
    if name == "CppFunction":
        name = function.name().rsplit("::", 1)[-1]
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return Look(tensor.device, name, tensor.requires_grad, is_parameter)


def with_look(tensor: torch.Tensor, look: Look) -> torch.Tensor:
    """A tensor with the contents of ``tensor`` whose text is that of one with this look."""
    if look == look_of(tensor):
        return tensor
    given: Any = tensor.detach().as_subclass(_kind())
    given.look = look
    return given  # type: ignore[no-any-return]


def text_or_tensor(tensor: torch.Tensor, look: Look) -> torch.Tensor | str:
    """The text of a tensor with this look, or a tensor that has this text."""
    text = None
    if not (look.parameter or tensor.dim()):
        text = text_of_number(tensor, look.device, look.grad_fn, look.requires_grad)
    return with_look(tensor, look) if text is None else text


@functools.cache
def _kind() -> Any:
    def text(self: Any, **options: Any) -> str:
        with without_overrides():  # nothing else of it is looked up
            plain: str = torch.Tensor.__repr__(self, **options)
        return f"Parameter containing:\n{plain}" if self.look.parameter else plain

    body = {
        "__repr__": text,
        "__module__": "torch",
        "__doc__": "A tensor in a text that is written after the graph.",
        "device": property(lambda self: self.look.device),
        "requires_grad": property(lambda self: self.look.requires_grad),
        "grad_fn": property(lambda self: _function(self.look.grad_fn)),
    }
    return type("tensor", (torch.Tensor,), body)  # torch prints the name of the class


@functools.cache
def _function(name: str | None) -> Any:
    return None if name is None else type(name, (), {})()
