"""A copy of a graph to go back to, and new calls that keep their place in the program.

Inductor names kernels after the origin, and reports give its source line.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import fx

from fusepass.torch_private.fx.graphs import lend_inputs


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A copy with all that others have hung on the graph and its nodes, as Dynamo does."""
    duplicate = copy.deepcopy(graph)
    for old, new in [(graph, duplicate), *zip(graph.nodes, duplicate.nodes, strict=True)]:
        vars(new).update({k: v for k, v in vars(old).items() if k not in vars(new)})
    lend_inputs(duplicate)
    return duplicate


def snapshot(modules: Iterable[fx.GraphModule]) -> Callable[[], None]:
    """Remember the graphs of some modules; what is returned puts copies of them back."""
    saved = [(module, copy_graph(module.graph)) for module in modules]

    def put_back() -> None:
        for module, graph in saved:
            module.graph = copy_graph(graph)
            module.recompile()

    return put_back


_KEYS = ("stack_trace", "nn_module_stack", "original_aten")


def insert_call(
    graph: fx.Graph, like: fx.Node | None, target: Any, *args: Any, **kwargs: Any
) -> fx.Node:
    """Insert a call with its fake result; its place in the program is that of ``like``."""
    node = graph.call_function(target, args, kwargs)
    fakes = fx.map_arg((args, kwargs), lambda one: one.meta["val"])
    node.meta["val"] = target(*fakes[0], **fakes[1])
    if like is not None:
        inherit_meta(node, like)
    return node


def inherit_meta(made: fx.Node, source: fx.Node) -> None:
    """Let a node that stands for another say that it comes from where that does."""
    for key in _KEYS:
        if key in source.meta:
            made.meta[key] = source.meta[key]
