"""Reach the whole graph before torch cuts it for DistributedDataParallel.

Run on torch 2.11 to 2.15.

While a wrapped module runs, Dynamo calls a ``DDPOptimizer`` in place of the backend. That
cuts a graph where a bucket of parameters is full, so that gradients can be exchanged while the rest
of the backward runs, and hands the pieces to the backend one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from fusepass.torch_private.patches import Patches, Theirs


def behind_buckets(compiler: Any) -> Any:
    """The callback that gets the pieces, where ``compiler`` cuts graphs into them; else None."""
    return getattr(getattr(compiler, "__self__", None), "backend_compile_fn", None)


def hook_cuts(patches: Patches, on_cut: Callable[[fx.GraphModule], None]) -> None:
    """Have ``on_cut`` called with each graph before it is cut.

    Args:
        patches: take the hook out again.
        on_cut: may edit the graph in place.
    """
    from torch._dynamo.backends.distributed import DDPOptimizer

    def compile_fn(theirs: Theirs, self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        on_cut(gm)
        return theirs(self, gm, *args, **kwargs)

    patches.put(DDPOptimizer, "compile_fn", compile_fn)
