"""One call of a program, and everything that can be seen of it."""

from __future__ import annotations

import contextlib
import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fusepass.testing.compare import sharing, tensors
from fusepass.testing.precision import default_dtype, in_precision
from fusepass.torch_private.fx.tensor_kinds import wrapped

Scope = Callable[[], contextlib.AbstractContextManager[Any]]
Error = tuple[type[BaseException], str] | None


# What a program may be called in. After ``grad`` comes a backward.
CONTEXTS: dict[str, Scope] = {
    "plain": contextlib.nullcontext,
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
}


@dataclass
class Seen:
    """What one call did.

    Attributes:
        args: the arguments, after the call.
        result: what it returned.
        raised: what it raised.
        grad_mode: whether gradients are recorded after the call.
        held: parameters and buffers of its owner.
        state: what else the owner holds.
        grads: of the leaves that require one, None where autograd gave none.
        backward_error: what the backward raised.
        shared: who is who among the objects; looked up when it is asked for unless it is set.
    """

    args: tuple[Any, ...]
    result: Any = None
    raised: BaseException | None = None
    grad_mode: bool = True
    held: list[Tensor] = field(default_factory=list)
    state: Any = None
    grads: list[Tensor | None] = field(default_factory=list)
    backward_error: Error = None
    shared: dict[str, list[int]] | None = None

    def sharing(self) -> dict[str, list[int]]:
        """Who is who among all that it left: see :func:`fusepass.testing.compare.sharing`."""
        return self.shared or sharing(self.args, self.held, self.state, self.result)

    @property
    def error(self) -> Error:
        """Type and text of what it raised."""
        return None if self.raised is None else (type(self.raised), str(self.raised))


def call(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    owner: Any = None,
    context: str = "grad",
    state: Callable[[Any], Any] | None = None,
    *,
    around: Scope = contextlib.nullcontext,
    listening: Scope = contextlib.nullcontext,
) -> Seen:
    """Call a program once, and go backward if the context is ``grad``.

    Args:
        target: what to call.
        args: its arguments; it may write to them.
        owner: a module or an object that holds all state of the program.
        context: one of :data:`CONTEXTS`.
        state: what is compared of the owner besides its parameters and buffers.
        around: a further scope of the call.
        listening: a scope of the call, and again of its backward.
    """
    seen = Seen(args)
    every = (*tensors(args), *tensors(owner))
    leaves = [leaf for leaf in every if leaf.is_leaf or leaf.retains_grad]
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(7)
    random.seed(7)
    with listening(), CONTEXTS[context](), around():
        try:
            seen.result = target(*args)
        except Exception as error:
            if type(error).__name__ == "RecompileError":  # no program raises it
                raise
            seen.raised = error
            gone: BaseException | None = error
            while gone is not None:  # torch keeps guards of modes in locals of frames
                traceback.clear_frames(gone.__traceback__)
                gone = gone.__cause__ or gone.__context__
    seen.grad_mode = torch.is_grad_enabled()
    # At once: a program that writes a global shares it with the other side, and resets it here.
    seen.state = state(owner) if state else None
    seen.held = list(tensors(owner))
    if context == "grad" and seen.raised is None:
        with listening():
            try:
                _backward(seen.result)
            except RuntimeError as error:
                seen.backward_error = (type(error), str(error))
        kept = [leaf for leaf in leaves if leaf.requires_grad]
        seen.grads = [leaf.grad if leaf.is_leaf or leaf.retains_grad else None for leaf in kept]
    return seen


def observed(
    target: Callable[..., Any], args: tuple[Any, ...], owner: Any = None, context: str = "grad"
) -> Seen:
    """Call a program that a rule may rewrite; after an exception no argument is compared."""
    seen = call(target, args, owner, context)
    return seen if seen.raised is None else replace(seen, args=(), held=[])


def at_precision(dtype: torch.dtype, program: Callable[..., Any], inputs: Sequence[Tensor]) -> Seen:
    """Call a program on copies of its inputs, all in one floating dtype.

    Casts and dtype arguments inside the program give way to that dtype, so that in float64 the
    result is the exact one as far as rounding goes. Where an input has 16 bits, a cast copies.
    """
    copies: dict[int, Tensor] = {}
    for tensor in inputs:
        if id(tensor) not in copies:
            plain = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor.detach()
            copies[id(tensor)] = plain.clone().requires_grad_(tensor.requires_grad)
    lower = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in inputs)
    with in_precision(dtype, casts_copy=lower):
        return observed(program, tuple(copies[id(tensor)] for tensor in inputs))


def _backward(result: Any) -> None:
    outputs = [out for out in tensors(result) if out.requires_grad and out.is_floating_point()]
    generator = torch.Generator().manual_seed(11)

    def drawn(out: Tensor) -> Tensor:
        random = torch.randn(out.shape, generator=generator, dtype=torch.float64)
        return random.to(out.device, out.dtype)

    given = [torch.ones_like(out) if wrapped(out) else drawn(out) for out in outputs]
    if outputs:
        torch.autograd.backward(outputs, given)
