"""Calls with tensor subclasses and other special tensors, which the safety tables do not cover.

What ``x * 2`` does with a subclass is for the subclass to say: it may fail, print, or return what
is no tensor, and it sees which call is made. Sparse, nested and quantized tensors have few of the
calls. So none of these may run where the program does not run it, or be made another call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.op_names import op_name
from fusepass.torch_private.fx.tensor_kinds import kind_of_fake, own_rules, rules_not_torchs


def special_tensor_reason(node: fx.Node) -> str | None:
    """Why nothing is known of a call: a tensor that it takes or gives; None if they are ordinary.

    Inside a transform of torch.func calls do what they do outside.
    """
    return _first(node, own_rules)


def user_subclass_reason(node: fx.Node) -> str | None:
    """The same, but for subclasses of torch's own: DTensors fail where ordinary tensors do."""
    return _first(node, rules_not_torchs)


def special_or_transformed_reason(node: fx.Node) -> str | None:
    """The same, also for tensors inside a transform: they cannot be told from outside."""
    return _first(node, kind_of_fake)


def begins_transform(name: str) -> bool:
    """Whether a call enters a transform of torch.func (grad, vmap, jvp)."""
    return name.startswith("_saved_tensors_hooks") or name.endswith("_increment_nesting")


def _first(node: fx.Node, kind: Callable[[torch.Tensor], str | None]) -> str | None:
    for value in _tensors([node, *node.all_input_nodes]):
        why = kind(value)
        if why is not None:
            name = op_name(node) or getattr(node.target, "__name__", str(node.target))
            return f"{name} takes or gives a tensor that {why}"
    return None


def _tensors(nodes: list[fx.Node]) -> Iterator[torch.Tensor]:
    for node in nodes:
        value: Any = node.meta.get("example_value", node.meta.get("val"))
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, torch.Tensor):
                yield part
