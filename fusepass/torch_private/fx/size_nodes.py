"""Find or make the nodes of a graph that hold symbolic sizes as numbers. Run on torch 2.11 to 2.15.

Dynamo and AOTAutograd hand a graph the sizes that vary as inputs, but not all of them: how many
rows the parts of a nested tensor have together is only a size of the tensor of their values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx


def symbol_nodes(graph: fx.Graph) -> dict[Any, fx.Node]:
    """Symbol to the node of a graph that holds it as a number."""
    found: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        value = _value(node)
        if isinstance(value, (torch.SymInt, torch.SymFloat)) and value.node.expr.is_symbol:
            found.setdefault(value.node.expr, node)
    return found


def unheld_symbols(sizes: Iterable[Any], graph: fx.Graph) -> set[str]:
    """Symbols in some sizes that a graph has neither as a number nor as a size of an input."""
    symbols = {symbol for size in sizes for symbol in size.node.expr.free_symbols}
    return set(map(str, symbols - symbol_nodes(graph).keys() - _sizes_of_inputs(graph).keys()))


def size_as_node(size: Any, known: dict[Any, fx.Node], graph: fx.Graph) -> Any:
    """Nodes that compute a symbolic size out of sizes the graph holds.

    Symbols that are asked of an input are added to ``known``.

    Raises:
        KeyError: a symbol the graph does not hold.
    """
    from torch.fx.proxy import GraphAppendingTracer
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    expression = size.node.expr
    if expression.is_number:
        return int(expression) if expression.is_integer else float(expression)
    inputs = _sizes_of_inputs(graph) if expression.free_symbols - known.keys() else {}
    for symbol in sorted(expression.free_symbols - known.keys(), key=str):
        if symbol not in inputs:
            raise KeyError(f"the graph holds no node for the size {symbol}")
        known[symbol] = _asked(graph, *inputs[symbol])
    tracer = GraphAppendingTracer(graph)
    proxies = {s: fx.Proxy(known[s], tracer) for s in expression.free_symbols}
    result = sympy_interp(PythonReferenceAnalysis, proxies, expression)
    return result.node if isinstance(result, fx.Proxy) else result


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))


def _sizes_of_inputs(graph: fx.Graph) -> dict[Any, tuple[fx.Node, int]]:
    """Symbol to an input, and its dimension, of that size."""
    found: dict[Any, tuple[fx.Node, int]] = {}
    for node in graph.nodes:
        value = _value(node)
        if node.op != "placeholder" or not isinstance(value, torch.Tensor):
            continue
        sizes: tuple[Any, ...] = value.shape
        for dim, size in enumerate(sizes):
            expression = None if isinstance(size, int) else getattr(size.node, "expr", None)
            if expression is not None and expression.is_symbol:
                found.setdefault(expression, (node, dim))
    return found


def _asked(graph: fx.Graph, tensor: fx.Node, dim: int) -> fx.Node:
    """A size of an input as a number, behind all inputs."""
    *_, last = (node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(last):
        made = graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
    key = "example_value" if "example_value" in tensor.meta else "val"
    made.meta[key] = tensor.meta[key].shape[dim]
    return made
