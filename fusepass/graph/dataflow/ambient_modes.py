"""Grad mode and autocast as they are at a place in a graph, for fake values made there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx


@contextlib.contextmanager
def replay_modes() -> Iterator[Callable[[fx.Node], None]]:
    """Inside, handing over each node of a graph in order switches the modes as it would.

    The graph begins in the modes that are on outside, which are on again afterwards.
    """
    before = torch.is_grad_enabled()
    open_regions: dict[fx.Node, torch.autocast] = {}

    def follow(node: fx.Node) -> None:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name == "_set_grad_enabled":
            torch.set_grad_enabled(bool(node.args[0]))
        elif name == "_enter_autocast":
            device_type, dtype, enabled, _ = node.args
            region = torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=False)  # type: ignore[arg-type]
            region.__enter__()
            open_regions[node] = region
        elif name == "_exit_autocast" and node.args[0] in open_regions:
            open_regions.pop(node.args[0]).__exit__(None, None, None)  # type: ignore[arg-type]

    try:
        yield follow
    finally:
        for region in reversed(open_regions.values()):
            region.__exit__(None, None, None)
        torch.set_grad_enabled(before)


def autocasts_at(target: fx.Node) -> list[tuple[Any, ...]]:
    """Arguments of the autocast regions of its graph that a node stands in, outermost first."""
    open_regions: list[fx.Node] = []
    for node in target.graph.nodes:
        if node is target:
            break
        name = getattr(node.target, "__name__", "")
        if name == "_enter_autocast":
            open_regions.append(node)
        elif name == "_exit_autocast" and node.args and node.args[0] in open_regions:
            open_regions.remove(node.args[0])
    return [tuple(node.args) for node in open_regions]
