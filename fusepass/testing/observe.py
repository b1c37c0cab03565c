"""What can be seen of one call of a program: results, inputs afterwards, gradients, exceptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusepass.testing.precision import in_precision
from fusepass.torch_private.fx.graphs import storage_key, tree_flatten

Program = Callable[..., Any]
_CONTEXTS = {"": torch.enable_grad, "inference": torch.inference_mode, "no_grad": torch.no_grad}


@dataclass(frozen=True)
class Observation:
    """One call.

    Attributes:
        outputs: what the program returned, flattened.
        inputs: its tensor arguments after the call.
        gradients: of the inputs that are leaves requiring one, None where autograd gave none;
            None as a whole if there was no backward.
        sharing: for each output and input, the first of them in the same storage, and the first
            that is the same object.
        error: what the program raised.
    """

    outputs: tuple[Any, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    gradients: tuple[Tensor | None, ...] | None = None
    sharing: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    error: Exception | None = None


def observe(
    program: Program, inputs: Sequence[Tensor], *, called: str = "", backward: bool = True
) -> Observation:
    """Call a program, and go backward through it.

    Args:
        program: what to call.
        inputs: its tensors; it may write to them.
        called: what it is called in: ``""``, ``"no_grad"`` or ``"inference"``.
        backward: whether to ask for gradients.
    """
    try:
        with _CONTEXTS[called]():
            returned = program(*inputs)
    except Exception as error:  # noqa: BLE001 - programs raise what they like; it is compared
        return Observation(error=error)
    outputs = tuple(tree_flatten(returned)[0])
    found = gradients(outputs, inputs) if backward and not called else None
    seen = [value for value in (*outputs, *inputs) if isinstance(value, Tensor)]
    storages = [storage_key(value) for value in seen]
    objects = [id(value) for value in seen]
    sharing = tuple(tuple(ids.index(one) for one in ids) for ids in (storages, objects))
    return Observation(outputs, tuple(inputs), found, (sharing[0], sharing[1]))


def gradients(outputs: Sequence[Any], inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...] | None:
    """Gradients of the leaves among the inputs, for fixed random gradients of the outputs.

    None if nothing requires one, or if autograd refuses (a saved value was written to).
    """
    leaves = list({id(t): t for t in inputs if t.requires_grad and t.is_leaf}.values())
    ends = [t for t in outputs if isinstance(t, Tensor) and t.requires_grad]
    if not leaves or not ends:
        return None
    generator = torch.Generator().manual_seed(7)
    given = [
        torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.device, t.dtype)
        for t in ends
    ]
    try:
        return torch.autograd.grad(ends, leaves, given, allow_unused=True)
    except RuntimeError:
        return None


def at_precision(dtype: torch.dtype, program: Program, inputs: Sequence[Tensor]) -> Observation:
    """Call a program on copies of its inputs, all in one floating dtype.

    Casts and dtype arguments inside the program give way to that dtype, so that in float64 the
    result is the exact one as far as rounding goes.
    """
    copies: dict[int, Tensor] = {}
    for tensor in inputs:
        if id(tensor) not in copies:
            plain = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor.detach()
            copies[id(tensor)] = plain.clone().requires_grad_(tensor.requires_grad)
    with in_precision(dtype):
        return observe(program, [copies[id(tensor)] for tensor in inputs])
