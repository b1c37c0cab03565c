"""Indices that are in range by the way they were made: ``argmax``, ``sort``, ``arange``, ``clamp``.

Indexing with a tensor fails for an index out of range, so that it may not run in an arm that was
not taken. An index that says where in a dimension something was found fits every dimension that is
at least as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import is_nonempty, memories
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal, known_true

_RAISES = "an index out of range raises"
_SAME_ELEMENTS = frozenset(
    """clone contiguous detach expand expand_as flatten flip long movedim narrow permute repeat
    reshape select squeeze t to transpose unflatten unsqueeze view""".split()
)
# Position of ``dim`` and what it is when not given, for calls whose second result says where.
_FOUND_SECOND = {
    "kthvalue": (2, -1),
    "max": (1, None),
    "min": (1, None),
    "sort": (1, -1),
    "topk": (2, -1),
}


def range_of(node: Any) -> Any:
    """A size below which every element of an index tensor is, none below zero; None if unknown."""
    if not isinstance(node, fx.Node):
        return None
    written = {key for one in node.graph.nodes for key in memories(written_nodes(one))}
    bound: int | None = None
    current: Any = node
    while isinstance(current, fx.Node) and written.isdisjoint(memories([current])):
        value, name = tensor_value(current), op_name(current)
        if value is None or value.dtype not in (torch.int64, torch.int32):
            break
        most = _clamp_max(current) if name == "clamp" else None
        if most is not None and bound is None:
            bound = most + 1
        if not _has_elements_of_source(current) and most is None:
            found = _range_of_call(str(name), current)
            return found if found is None or bound is None else bound
        if most is not None and _is_natural(argument(current, 1, "min")):
            return bound
        current = current.args[0] if current.args else None
    return None


def _has_elements_of_source(node: fx.Node) -> bool:
    name = op_name(node)
    if name in ("getitem", "__getitem__"):
        return tensor_value(node.args[0]) is not None and _is_basic(node.args[1])
    return name in _SAME_ELEMENTS


def _clamp_max(clamp: fx.Node) -> int | None:
    most = argument(clamp, 2, "max")
    return most if _is_natural(most) else None


def _is_natural(number: Any) -> bool:
    return type(number) is int and number >= 0


def _range_of_call(name: str, node: fx.Node) -> Any:
    source = node.args[0] if node.args else None
    if name in ("argmax", "argmin", "argsort"):
        return _length(source, argument(node, 1, "dim", -1 if name == "argsort" else None))
    if name == "getitem" and isinstance(source, fx.Node) and node.args[1] == 1:
        found = _FOUND_SECOND.get(str(op_name(source)))
        if found is not None and tensor_value(source) is None:
            dim = argument(source, found[0], "dim", found[1])
            return None if dim is None else _length(source.args[0], dim)
    if name == "arange":
        return source if len(node.args) == 1 and isinstance(source, (int, fx.Node)) else None
    if name == "remainder":
        divisor = argument(node, 1, "other")
        return divisor if type(divisor) is int and divisor > 0 else None
    return None


def _length(source: Any, dim: Any) -> Any:
    value = tensor_value(source)
    if value is None or not is_nonempty(source):
        return None
    if dim is None:
        return math.prod(value.shape)
    if type(dim) is not int or value.dim() == 0:
        return 1 if value.dim() == 0 else None
    return value.shape[dim]


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, (tuple, list)) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)


def index_in_range(index: Any, size: Any) -> bool:
    """Whether every element of an index tensor is in range for a dimension of this size."""
    bound = range_of(index)
    if isinstance(bound, fx.Node):
        bound = bound.meta.get("example_value")
    number = isinstance(bound, (int, torch.SymInt))
    return number and known_equal(bound <= size, True)


def _check_one_dim(dim_at: int, index_at: int) -> Callable[[fx.Node], str | None]:
    """The check of a call that indexes one dimension of its first operand."""

    def check(node: fx.Node) -> str | None:
        value = tensor_value(argument(node, 0, "input"))
        dim, index = argument(node, dim_at, "dim"), argument(node, index_at, "index")
        known = value is not None and value.dim() > 0 and type(dim) is int
        if known and index_in_range(index, value.shape[dim]):  # type: ignore[union-attr]
            return None
        return f"{op_name(node)}: {_RAISES}"

    return check


def _select(node: fx.Node) -> str | None:
    value, dim = tensor_value(argument(node, 0, "input")), argument(node, 1, "dim")
    index = argument(node, 2, "index")
    number = index.meta.get("example_value") if isinstance(index, fx.Node) else None
    if value is None or type(dim) is not int or not isinstance(number, torch.SymInt):
        return None  # a constant is checked while it is traced
    size = value.shape[dim]
    if known_true(number < size) and known_true(number >= -size):
        return None
    return "select: an index that varies may be out of range, which raises"


def _one_hot(node: fx.Node) -> str | None:
    classes = argument(node, 1, "num_classes", -1)
    if type(classes) is int and classes > 0 and index_in_range(argument(node, 0, "input"), classes):
        return None
    return "one_hot: a negative or too large class raises"


def _embedding(node: fx.Node) -> str | None:
    weight = tensor_value(argument(node, 1, "weight"))
    bare = argument(node, 3, "max_norm") is None
    if weight is not None and bare and index_in_range(argument(node, 0, "input"), weight.shape[0]):
        return None
    return "embedding: an index outside the table raises (on CUDA: a device assert)"


def indices_in_range(value: torch.Tensor, index: Any) -> bool:
    """Whether an index of tensors and whole dimensions is in range for every input."""
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) > value.dim():
        return False
    return all(
        part == slice(None)
        if isinstance(part, slice)
        else tensor_value(part) is not None and index_in_range(part, size)
        for part, size in zip(parts, value.shape, strict=False)
    )


INDEX_CHECKS: dict[str, Callable[[fx.Node], str | None]] = {
    **dict.fromkeys(("gather", "index_select", "scatter", "scatter_add"), _check_one_dim(1, 2)),
    **dict.fromkeys(("scatter_", "scatter_add_"), _check_one_dim(1, 2)),
    "embedding": _embedding,
    "one_hot": _one_hot,
    "select": _select,
    "take_along_dim": _check_one_dim(2, 1),
}
