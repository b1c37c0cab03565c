"""Keep the class of a subclass's tensor when it is written. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def hook_classes(is_ours: Callable[[Any], bool]) -> Callable[[], None]:
    """Let a tensor be of its class behind a call that writes it; what is returned ends that.

    Before torch 2.15 Dynamo then takes the class from the fake tensor, which for a subclass without
    tensors of its own is an ordinary one.

    Args:
        is_ours: called with the output graph; says whether the frame is compiled for fusepass.
    """
    from torch._dynamo.variables import TensorVariable

    synchronize = TensorVariable.synchronize_attributes

    @functools.wraps(synchronize)
    def keeping(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
        held = self.class_type
        synchronize(self, tx, *args, **kwargs)
        if is_ours(tx.output):
            self.class_type = held

    TensorVariable.synchronize_attributes = keeping  # type: ignore[method-assign]
    return lambda: setattr(TensorVariable, "synchronize_attributes", synchronize)
