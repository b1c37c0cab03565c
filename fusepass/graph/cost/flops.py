"""How many floating-point operations a product of matrices, a convolution or attention takes.

Everything else counts as none: it is bound by the memory it reads and writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import fx

from fusepass.graph.dataflow.fake_sizes import elements, size, tensors_of
from fusepass.graph.ops.op_names import argument, op_name, tensor_value

# The left operand of a product, whose last dimension is summed over: its position and keywords.
_CONTRACTED: dict[str | None, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys("mm bmm mv matmul linear dot vdot inner".split(), (0, ("input", "self"))),
    "addmm": (1, ("mat1",)),
    "addmv": (1, ("mat",)),
    "baddbmm": (1, ("batch1",)),
}


def flops(node: fx.Node) -> float:
    """Floating-point operations of one call, a multiplication and an addition counting as two."""
    name, result = op_name(node), tensor_value(node)
    if result is None:
        found = tensors_of(node)
        if name not in _FORMULAS or not found:
            return 0.0
        result = found[0]
    if name in _CONTRACTED:
        left = _operand(node, *_CONTRACTED[name])
        if left is None:
            return 0.0
        return 2.0 * elements(result) * (size(left.shape[-1]) if left.dim() else 1)
    return _FORMULAS[name](node, result) if name in _FORMULAS else 0.0


def _operand(node: fx.Node, position: int, keywords: tuple[str, ...]) -> torch.Tensor | None:
    if len(node.args) > position:
        return tensor_value(node.args[position])
    return next((tensor_value(node.kwargs[k]) for k in keywords if k in node.kwargs), None)


def _addbmm(node: fx.Node, result: torch.Tensor) -> float:
    """Products of a batch, summed over the batch too."""
    left = _operand(node, 1, ("batch1",))
    return 0.0 if left is None else 2.0 * elements(left) * size(result.shape[-1])


def _convolution(node: fx.Node, result: torch.Tensor) -> float:
    """Each output element takes the weights of its output channel."""
    weight = tensor_value(argument(node, 1, "weight"))
    if weight is None:
        return 0.0
    return 2.0 * elements(result) * elements(weight) / max(1, size(weight.shape[0]))


def _transposed_convolution(node: fx.Node, result: torch.Tensor) -> float:
    """Each input element takes the weights of its input channel."""
    source = tensor_value(argument(node, 0, "input"))
    weight = tensor_value(argument(node, 1, "weight"))
    if source is None or weight is None:
        return 0.0
    return 2.0 * elements(source) * elements(weight) / max(1, size(weight.shape[0]))


def _attention(node: fx.Node, result: torch.Tensor) -> float:
    """Scores of each query with each key, then the weighted values."""
    query = tensor_value(argument(node, 0, "query"))
    key = tensor_value(argument(node, 1, "key"))
    if query is None or key is None:
        return 0.0
    keys, inner = size(key.shape[-2]), size(query.shape[-1])
    rows = elements(result) / max(1, size(result.shape[-1]))
    return 2.0 * rows * keys * (inner + size(result.shape[-1]))


def _bilinear(node: fx.Node, result: torch.Tensor) -> float:
    weight = tensor_value(argument(node, 2, "weight"))
    if weight is None:
        return 0.0
    return 2.0 * elements(result) * elements(weight) / max(1, size(weight.shape[0]))


def _contraction(node: fx.Node, result: torch.Tensor) -> float:
    """FLOPs of a contraction: |a| |b| / |result| is the summed size, squared, without batches."""
    operands = [v for arg in node.all_input_nodes for v in tensors_of(arg)]
    if not operands or not elements(result):
        return 0.0
    first, last = elements(operands[0]), elements(operands[-1])
    return 2.0 * elements(result) * math.sqrt(first * last / elements(result))


def _einsum(node: fx.Node, result: torch.Tensor) -> float:
    """Twice the product of all sizes named; what is behind an ellipsis is in no name."""
    equation = node.args[0]
    given = node.args[1:]
    operands = list(given[0] if given and isinstance(given[0], (tuple, list)) else given)
    values = [tensor_value(operand) for operand in operands]
    if not isinstance(equation, str) or "." in equation or None in values:
        return _contraction(node, result)
    sizes: dict[str, int] = {}
    names = equation.replace(" ", "").split("->")[0].split(",")
    for letters, value in zip(names, values, strict=False):
        shape = value.shape if value is not None else ()
        sizes.update(zip(letters, map(size, shape), strict=False))
    return 2.0 * math.prod(sizes.values())


def _distances(node: fx.Node, result: torch.Tensor) -> float:
    points = tensor_value(argument(node, 0, "x1"))
    return 0.0 if points is None else 3.0 * elements(result) * size(points.shape[-1])


_FORMULAS: dict[str | None, Callable[[fx.Node, torch.Tensor], float]] = {
    **{f"conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _transposed_convolution for n in (1, 2, 3)},
    "convolution": _convolution,
    "scaled_dot_product_attention": _attention,
    "addbmm": _addbmm,
    "bilinear": _bilinear,
    "tensordot": _contraction,
    "einsum": _einsum,
    "cdist": _distances,
}
