"""Where a node comes from: what Inductor names kernels after, and reports say."""

from __future__ import annotations

from torch import fx

_KEYS = ("stack_trace", "nn_module_stack", "original_aten")


def inherit(made: fx.Node, source: fx.Node) -> None:
    """Let a node that stands for another say that it comes from where that does."""
    for key in _KEYS:
        if key in source.meta:
            made.meta[key] = source.meta[key]
