"""Sums that scale what they add: of ``a + alpha b`` Inductor makes an ``addmm`` without alpha.

Where one of both is a product of matrices, Inductor's pattern for ``addmm`` (seen in torch 2.13)
matches the sum and drops the factor: a wrong number without a word. Parted into a product with
alpha and a plain sum it is what the program says, and generated as one kernel as before.
"""

from __future__ import annotations

import torch
from torch import fx

_aten = torch.ops.aten
_ADD, _MUL = _aten.add.Tensor, _aten.mul.Tensor
_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default)
_SAME_NUMBERS = (
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.reshape.default,
    _aten.clone.default,
    _aten.alias.default,
    _aten.detach.default,
)


def part_scaled_sums(graph: fx.Graph) -> None:
    """Part every such sum of a joint or forward graph of ATen calls, in place."""
    for node in graph.find_nodes(op="call_function", target=_ADD):
        alpha, both = node.kwargs.get("alpha", 1), node.args
        if alpha == 1 or not any(map(_is_product, both)) or not isinstance(both[1], fx.Node):
            continue
        with graph.inserting_before(node):
            scaled = graph.call_function(_MUL, (both[1], alpha))
        scaled.meta = dict(both[1].meta)
        if "val" in both[1].meta:
            scaled.meta["val"] = _MUL(both[1].meta["val"], alpha)
        node.args = (both[0], scaled)
        node.kwargs = {}


def _is_product(value: object) -> bool:
    while isinstance(value, fx.Node) and value.target in _SAME_NUMBERS:
        value = value.args[0]
    return isinstance(value, fx.Node) and value.target in _PRODUCTS
