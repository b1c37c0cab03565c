"""Take apart objects whose class is registered with pytree. Run on torch 2.11 to 2.15."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree


def registered_node(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """Children of an object whose very class is registered, and how to make it anew of others.

    None for what is a leaf to pytree.
    """
    node = _pytree.SUPPORTED_NODES.get(type(value))
    if node is None:
        return None
    children, context = node.flatten_fn(value)
    return list(children), lambda others: node.unflatten_fn(others, context)
