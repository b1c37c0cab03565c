"""Sizes of the fake tensors in a graph, as numbers and without adding a guard.

A symbolic size counts as its hint, the size of the inputs at hand; one that depends on data counts
as :data:`UNKNOWN`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.fx.tracing import size_hint

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
