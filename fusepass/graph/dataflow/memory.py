"""Which memory a value lives in, as eager would have it.

Fake tensors share storage exactly where real ones do, but for one thing: an operation that has
nothing to do may return its argument itself in eager and a fresh value under a fake mode (dropout
outside training). Also how much memory a value takes, and whether two values lie alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import RANDOM_OPS, is_random
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal, size_hint, storage_key
from fusepass.torch_private.fx.tensor_kinds import held_inside

_HANDS_BACK = frozenset(name for name in RANDOM_OPS if "dropout" in name)


def memory_of(node: object) -> int | None:
    """Identity of the memory behind a node's tensor; equal for views of one another."""
    while isinstance(node, fx.Node) and op_name(node) in _HANDS_BACK and not is_random(node):
        node = node.args[0] if node.args else node.kwargs.get("input")
    value = tensor_value(node)
    return None if value is None else storage_key(value)


def memories(nodes: Iterable[object]) -> list[int]:
    """Memory of every tensor the nodes stand for, those inside tuples and subclasses included."""
    found: list[int] = []
    for node in nodes:
        key = memory_of(node)
        value = tensor_value(node)
        if key is not None and value is not None:
            found += [key, *map(storage_key, held_inside(value))]
        elif isinstance(node, fx.Node):
            parts = node.meta.get("example_value")
            if isinstance(parts, (tuple, list)):
                tensors = (part for part in parts if isinstance(part, torch.Tensor))
                found += [storage_key(part) for part in tensors]
    return found


# --- Sizes of the fake tensors in a graph, as numbers and without adding a guard ------------------
# A symbolic size counts as its hint, the size of the inputs at hand; one that depends on data
# counts as :data:`UNKNOWN`.

UNKNOWN = 1024


def size(value: int | torch.SymInt) -> int:
    """One size as a number."""
    hint = size_hint(value)
    return UNKNOWN if hint is None else hint


def elements(value: torch.Tensor) -> int:
    """Elements of a tensor as its shape says."""
    return math.prod(map(size, value.shape))


def stored_bytes(value: torch.Tensor) -> int:
    """Bytes of memory that a tensor's elements lie in: expanded dimensions count once."""
    if value.layout is not torch.strided:
        return elements(value) * value.element_size()
    pairs = zip(value.shape, value.stride(), strict=True)
    lying = (size(n) for n, step in pairs if size_hint(step) != 0)
    return math.prod(lying) * value.element_size()


def tensors_of(node: Any) -> list[torch.Tensor]:
    """The fake tensors a node stands for: one, those of a tuple, or none."""
    if not isinstance(node, fx.Node):
        return []
    value = node.meta.get("example_value", node.meta.get("val"))
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def is_nonempty(node: Any) -> bool:
    """Whether a node is one tensor that has elements whatever its symbolic sizes are."""
    value = tensors_of(node)
    return len(value) == 1 and all(known_equal(n > 0, True) for n in value[0].shape)


def same_layout(found: Any, expected: Any) -> bool:
    """Whether two tensors have one dtype, shape and strides for every input; False of others."""
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return False
    if found.dtype is not expected.dtype or found.dim() != expected.dim():
        return False
    ours, theirs = (*found.shape, *found.stride()), (*expected.shape, *expected.stride())
    return all(map(known_equal, ours, theirs))


def are_alike(a: object, b: object) -> bool:
    """Whether two nodes hold tensors of one layout on one device."""
    x, y = tensor_value(a), tensor_value(b)
    return same_layout(x, y) and x is not None and y is not None and x.device == y.device
