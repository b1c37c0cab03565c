"""Find operations that torch keeps in program order because of their effects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from fusepass.torch_private.fx.dispatch_watch import Watching, operation_name


def effect_of(call: Callable[[], Any]) -> str | None:
    """The first operation with an effect that a call runs; None where there is none, or it fails.

    From torch 2.13 on what raises for a singular matrix is one. Inductor has no place for them in
    the arms of a ``torch.cond`` (seen on 2.13 and 2.15).

    Args:
        call: on fake tensors.
    """
    from torch._higher_order_ops.effects import has_effects

    found: list[str] = []

    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if has_effects(func):
            found.append(operation_name(func))
        return func(*args, **kwargs)

    # Whatever is raised, the program's own call raises it.
    with Watching(handler), torch.no_grad(), contextlib.suppress(Exception):
        call()
    return found[0] if found else None
