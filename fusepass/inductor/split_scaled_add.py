"""Sums and differences that scale what they add: Inductor's patterns drop the factor.

A pattern that names an operation without ``alpha`` matches one that has it: up to torch 2.13, if
not 2.14, the pattern matcher looks at no keyword that a pattern does not have (2.15 does). So
``addmm`` is made of ``a + alpha (x w)``, attention of scores with a scaled mask, a softmax of
``t - alpha max(t)``, all without alpha: wrong numbers without a word. Parted into a product with
alpha and a plain sum they are what the program says, and are generated as one kernel as before.

Computed is in the type of the result, or in single precision for halves, as eager does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten
_MUL, _CONVERT = _aten.mul.Tensor, torch.ops.prims.convert_element_type.default
_SUMS = (_aten.add.Tensor, _aten.sub.Tensor)
_HALF = (torch.float16, torch.bfloat16)
_VALUE_META = ("tensor_meta", "eager_input_vals", "val")  # what a node's parts do not share


def split_scaled_adds(graph: fx.Graph) -> None:
    """Part every such sum of a joint or forward graph of ATen calls, in place."""
    for target in _SUMS:
        for node in graph.find_nodes(op="call_function", target=target):
            alpha = node.kwargs.get("alpha", 1)
            plain = not isinstance(alpha, fx.Node) and alpha == 1
            made, added = _value(node), _value(node.args[1])
            if plain or made is None or added is None or made.dtype is torch.bool:
                continue
            _split(node, alpha)


def _split(node: fx.Node, alpha: Any) -> None:
    graph, result = node.graph, node.meta["val"]
    wide = torch.float32 if result.dtype in _HALF else result.dtype
    left, right = node.args

    def call(target: Any, *args: Any) -> fx.Node:
        made = graph.call_function(target, args)
        made.meta = {key: value for key, value in node.meta.items() if key not in _VALUE_META}
        made.meta["val"] = target(*fx.map_arg(args, lambda one: one.meta["val"]))
        return made

    def widened(one: Any) -> Any:
        value = _value(one)
        return one if value is None or value.dtype is wide else call(_CONVERT, one, wide)

    with graph.inserting_before(node):
        scaled = call(_MUL, widened(right), alpha)
        total = call(node.target, widened(left), scaled)
        if wide is not result.dtype:
            total = call(_CONVERT, total, result.dtype)
    total.meta["val"] = result
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _value(node: object) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None
