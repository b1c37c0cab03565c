"""Reach the whole graph before torch cuts it for DistributedDataParallel.

Run on torch 2.11 to 2.15.

While a wrapped module runs, Dynamo calls a ``DDPOptimizer`` in place of the backend. That
cuts a graph where a bucket of parameters is full, so that gradients can be exchanged while the rest
of the backward runs, and hands the pieces to the backend one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import fx


def behind_buckets(compiler: Any) -> Any:
    """The callback that gets the pieces, where ``compiler`` cuts graphs into them; else None."""
    return getattr(getattr(compiler, "__self__", None), "backend_compile_fn", None)


def hook_cuts(on_cut: Callable[[fx.GraphModule], None]) -> Callable[[], None]:
    """Have ``on_cut`` called with each graph before it is cut; the result takes that back.

    Args:
        on_cut: may edit the graph in place.
    """
    from torch._dynamo.backends.distributed import DDPOptimizer

    theirs = DDPOptimizer.compile_fn

    @functools.wraps(theirs)
    def compile_fn(self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        on_cut(gm)
        return theirs(self, gm, *args, **kwargs)

    DDPOptimizer.compile_fn = compile_fn  # type: ignore[method-assign]

    def undo() -> None:
        DDPOptimizer.compile_fn = theirs  # type: ignore[method-assign]

    return undo
