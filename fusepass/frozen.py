"""Weights that the user says do not change: constants of the compiled code, watched for changes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from fusepass import torch_private
from fusepass.errors import FrozenChanged
from fusepass.options import Options

_State = tuple[int, int]


def watched(
    compiled: Callable[..., Any], gm: fx.GraphModule, options: Options
) -> Callable[..., Any]:
    """The compiled graph; with frozen weights, one that looks before each call whether they are.

    Writes in place and new memory are seen (``load_state_dict``, an optimizer's step, ``half()``),
    at some nanoseconds a weight. Not seen are writes through ``.data`` and those to inference
    tensors, which count no versions.

    Raises:
        FrozenChanged: from a call, if a weight is not what it was when it was compiled.
    """
    held = [*gm.named_parameters(), *gm.named_buffers()] if options.frozen else []
    if not held:
        return compiled
    tensors = [tensor for _, tensor in held]
    states = [_state(tensor) for tensor in tensors]

    @functools.wraps(compiled)
    def entered(*args: Any) -> Any:
        for tensor, state in zip(tensors, states, strict=True):
            if _state(tensor) != state:
                raise torch_private.transparent(FrozenChanged(_named(gm, tensor)))
        return compiled(*args)

    if getattr(compiled, "_boxed_call", False):
        entered._boxed_call = True  # type: ignore[attr-defined]
    return entered


def _state(tensor: Tensor) -> _State:
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version


def _named(gm: fx.GraphModule, tensor: Tensor) -> str:
    held = (*gm.named_parameters(), *gm.named_buffers())
    names = [name for name, one in held if one is tensor]
    return f"the weight {names[0]!r}" if names else "a weight"
