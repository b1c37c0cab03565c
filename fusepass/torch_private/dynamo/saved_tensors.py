"""Switch the caller's saved-tensors hooks off while a frame is traced.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import utils
from torch._dynamo.symbolic_convert import InstructionTranslator

from fusepass.torch_private.patches import IsOurs, Patches, Theirs


def saving_unhooked() -> contextlib.AbstractContextManager[None]:
    """Inside, the caller's hooks do not see what autograd saves; they are where they were.

    Dynamo and AOTAutograd do this around each of their own computations on fake tensors. Hooks that
    count tensors, as checkpointing does, or look into them, must not meet a fake one.
    """
    return utils._disable_saved_tensors_hooks_during_tracing()


def hook_saving(patches: Patches, is_ours: IsOurs) -> None:
    """Trace frames with the caller's saved-tensors hooks at rest.

    Hooks that the program itself sets break the graph, or are part of it: either way they are not
    called while it is traced.
    """

    def unhooked(theirs: Theirs, self: Any) -> None:
        with saving_unhooked() if is_ours(self.output) else contextlib.nullcontext():
            theirs(self)

    patches.put(InstructionTranslator, "run", unhooked)


def saving_masks_unhooked(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph of which the caller's hooks do not get the truth values it saves.

    The predicate of a captured branch is one, which eager mode never saves: hooks that save tensors
    in another dtype would have the backward read it as something else.
    """
    top: Any = torch._C._autograd._top_saved_tensors_default_hooks

    @functools.wraps(compiled)
    def entered(*args: Any) -> Any:
        hooks = top(True)
        if hooks is None:
            return compiled(*args)
        pack, unpack = hooks[:2]

        def packed(tensor: torch.Tensor) -> tuple[bool, Any]:
            return (True, tensor) if tensor.dtype is torch.bool else (False, pack(tensor))

        def unpacked(held: tuple[bool, Any]) -> torch.Tensor:
            as_it_is, value = held
            tensor: torch.Tensor = value if as_it_is else unpack(value)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(packed, unpacked):
            return compiled(*args)

    if getattr(compiled, "_boxed_call", False):
        entered._boxed_call = True  # type: ignore[attr-defined]
    return entered
