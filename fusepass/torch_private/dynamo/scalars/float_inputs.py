"""Keep writes to numbers that Dynamo passes to a graph as 0-d float64 inputs.

Run on torch 2.11 to 2.15.

Writes to such inputs stay in the graph: where Dynamo traces a frame a second time, with a number as
a constant that was read from one, it takes the input's node out if nothing but ``item`` reads it.
Up to torch 2.13 it looks at all nodes in that way: a write (``self.steps.add_(1)``) carries the
number of what it writes, has no reader, and is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from fusepass.torch_private.patches import Patches, Theirs
from fusepass.torch_private.versions import torch_version


def hook_tensorified(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Let Dynamo take out inputs only.

    Args:
        patches: take the hook out again.
        is_ours: called with the output graph; says whether the frame is compiled for fusepass.
    """
    from torch._dynamo.output_graph import OutputGraph

    def of_inputs(theirs: Theirs, self: Any) -> Any:
        if not is_ours(self):
            return theirs(self)
        hidden = [
            (node, node.meta.pop("example_value"))
            for node in self.graph.nodes
            if node.op != "placeholder" and "example_value" in node.meta
        ]
        try:
            return theirs(self)
        finally:
            for node, value in hidden:
                node.meta["example_value"] = value

    patches.put(OutputGraph, "remove_tensorify_specialized_graphargs", of_inputs)


def has_varying_floats(gm: fx.GraphModule) -> bool:
    """Whether a graph is given a Python float that may differ from call to call."""
    return any(
        isinstance(node.meta.get("example_value"), torch.SymFloat) and _reads_an_input(node)
        for node in gm.graph.find_nodes(op="call_method", target="item")
    )


def _reads_an_input(node: fx.Node) -> bool:
    source = node.args[0]
    return isinstance(source, fx.Node) and source.op == "placeholder"


@contextmanager
def without_autograd_cache() -> Iterator[None]:
    """AOTAutograd compiles anew, before torch 2.15, where it may take one number for another.

    Where a float is asked for as such, as by what the program keeps of it (``self.rate *= 0.9``),
    torch compiles for the value of the moment, with a guard, which gets lost where the cache knows
    the graph from another value (pytorch/pytorch issue 194976).
    """
    if torch_version() >= (2, 15):
        yield
        return
    from torch._functorch import config

    with config.patch(enable_autograd_cache=False):
        yield
