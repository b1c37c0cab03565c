"""Which memory a value lives in, as eager would have it.

Fake tensors share storage exactly where real ones do, but for one thing: an operation that has
nothing to do may return its argument itself in eager and a fresh value under a fake mode (dropout
outside training).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from fusepass.graph.dataflow.effects import RANDOM_OPS, is_random
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import storage_key
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
