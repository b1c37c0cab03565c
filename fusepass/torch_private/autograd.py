"""Ask autograd about the backward under way. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch


def backward_number() -> int:
    """The number of the backward in which this code runs, unique in the process."""
    return int(torch._C._current_graph_task_id())


def when_backward_ends(function: Callable[[], None]) -> None:
    """Call a function at the end of the backward in which this code runs, also if that fails."""

    def ended() -> None:
        call_once()

    # A backward that fails drops its callbacks uncalled.
    call_once = weakref.finalize(ended, function)
    call_once.atexit = False
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(ended)


def hooks_of(leaf: torch.Tensor) -> tuple[dict[int, Any] | None, dict[int, Any] | None]:
    """The hooks of a leaf: for its gradient, and for the leaf once it has got the gradient."""
    return leaf._backward_hooks, leaf._post_accumulate_grad_hooks


def in_transform() -> bool:
    """Whether this code runs inside a transform of ``torch.func``."""
    return torch._C._functorch.peek_interpreter_stack() is not None
