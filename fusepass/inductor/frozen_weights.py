"""Weights that the user says do not change: constants of the compiled code, watched for changes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, fx
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from fusepass.errors import FrozenChanged
from fusepass.options import Options
from fusepass.torch_private.dynamo.compile_state import transparent
from fusepass.torch_private.inductor.input_checks import KnownInputs


def with_frozen_weights_check(
    compiled: Callable[..., Any], gm: fx.GraphModule, options: Options
) -> Callable[..., Any]:
    """The compiled graph; with frozen weights, one that looks before each call whether they are.

    Writes in place, new memory and another view of it are seen (``load_state_dict``, an optimizer's
    step, ``half()``), at 0.2 µs a weight; so are steps of optimizers whose kernels count no
    versions (``fused=True``). Not seen are writes through ``.data`` or memory that is shared with
    NumPy, those of such kernels called directly, and those to inference tensors.

    Raises:
        FrozenChanged: from a call, if a weight is not what it was when it was compiled.
    """
    held = [*gm.named_parameters(), *gm.named_buffers()] if options.frozen else []
    if not held:
        return compiled
    tensors = [tensor for _, tensor in held]
    first_changed = _change_check(tensors)
    weights = _FrozenWeights(tensors)
    _hook_optimizer_steps()
    _watched.add(weights)

    @functools.wraps(compiled)
    def entered(*args: Any) -> Any:
        if weights.stepped is not None:
            raise transparent(FrozenChanged(_weight_name(gm, weights.stepped)))
        changed = first_changed()
        if changed is not None:
            raise transparent(FrozenChanged(_weight_name(gm, changed)))
        return compiled(*args)

    if getattr(compiled, "_boxed_call", False):
        entered._boxed_call = True  # type: ignore[attr-defined]
    return entered


class _FrozenWeights:
    """What a compiled graph holds, and which of it an optimizer has changed."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.held = {id(tensor) for tensor in tensors}  # who watches keeps them alive
        self.stepped: Tensor | None = None


_watched: weakref.WeakSet[_FrozenWeights] = weakref.WeakSet()


@functools.cache
def _hook_optimizer_steps() -> None:
    """From now on, have each step of an optimizer mark the frozen weights that it has changed."""
    register_optimizer_step_post_hook(_mark_changed_weights)


def _mark_changed_weights(optimizer: Optimizer, *_: Any) -> None:
    changed = [one for of in optimizer.param_groups for one in of["params"] if one.grad is not None]
    for weights in tuple(_watched):
        found = (one for one in changed if id(one) in weights.held)
        weights.stepped = weights.stepped if weights.stepped is not None else next(found, None)


def _change_check(tensors: list[Tensor]) -> Callable[[], Tensor | None]:
    """A check that gives the first tensor that is not what it is now, None if all are.

    ``.data = `` counts no version and may keep the address: type, size and strides count, too. They
    are compared in one call, which knows of each way to enter the code (grad mode, inference mode)
    from the second time on; one by one they would take twice the time of all the rest.
    """
    known = KnownInputs()
    counted = [tensor for tensor in tensors if not tensor.is_inference()]
    versions = [tensor._version for tensor in counted]
    addresses = [tensor.data_ptr() for tensor in tensors]
    layouts = [_layout(tensor) for tensor in tensors]

    def changed() -> Tensor | None:
        if [tensor._version for tensor in counted] != versions:
            pairs = zip(counted, versions, strict=True)
            return next(tensor for tensor, version in pairs if tensor._version != version)
        if [tensor.data_ptr() for tensor in tensors] != addresses:
            places = zip(tensors, addresses, strict=True)
            return next(tensor for tensor, place in places if tensor.data_ptr() != place)
        if not known.same(*tensors):
            for tensor, layout in zip(tensors, layouts, strict=True):
                if _layout(tensor) != layout:
                    return tensor
            known.learn(*tensors)
        return None

    return changed


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    lazy = tensor.is_conj(), tensor.is_neg()  # which read the same memory otherwise
    return tensor.dtype, tensor.shape, tensor.stride(), lazy


def _weight_name(gm: fx.GraphModule, tensor: Tensor) -> str:
    held = (*gm.named_parameters(), *gm.named_buffers())
    names = [name for name, one in held if one is tensor]
    return f"the weight {names[0]!r}" if names else "a weight"
