"""Keep the class of a subclass's tensor when it is written. Run on torch 2.11 to 2.15."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusepass.torch_private.patches import Patches, Theirs


def hook_classes(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Let a tensor be of its class behind a call that writes it.

    Before torch 2.15 Dynamo then takes the class from the fake tensor, which for a subclass without
    tensors of its own is an ordinary one.

    Args:
        patches: take the hook out again.
        is_ours: called with the output graph; says whether the frame is compiled for fusepass.
    """
    from torch._dynamo.variables import TensorVariable

    def keeping(theirs: Theirs, self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
        held = self.class_type
        theirs(self, tx, *args, **kwargs)
        if is_ours(tx.output):
            self.class_type = held

    patches.put(TensorVariable, "synchronize_attributes", keeping)
