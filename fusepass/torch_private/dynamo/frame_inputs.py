"""List the tensors that a traced frame is given. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._C._autograd import CreationMeta, _get_creation_meta
from torch._dynamo.source import (
    is_from_optimizer_source,
    is_from_unspecialized_nn_module_source,
)
from torch._subclasses import FakeTensor

_SPELLINGS = [
    (re.compile(r"^[LG]\['(\w+)'\]"), r"\1"),
    (re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]"), r".\1"),
    (re.compile(r"\.__dict__\['(\w+)'\]"), r".\1"),
]
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor that a graph is given.

    Attributes:
        node: the input.
        value: what the caller handed over.
        source: where in the frame it is found in each call.
        held: whether a module or an optimizer holds it.
    """

    node: fx.Node
    value: torch.Tensor
    source: Any
    held: bool

    @property
    def name(self) -> str:
        """As the program has it, where that is an argument or belongs to a module."""
        name = str(self.source.name)
        for pattern, plain in _SPELLINGS:
            name = pattern.sub(plain, name)
        return name


def tensors_given(graph: fx.Graph) -> list[Given]:
    """The inputs of a complete graph that are tensors with memory of their own."""
    found = []
    for node in graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        source = getattr(argument, "source", None)
        if source is None or not argument.is_tensor or argument.pass_arg_as_tensor:
            continue
        value = argument.example
        if _has_memory(value):
            found.append(Given(node, value, source, _is_held(value, source)))
    return found


def storage_of(value: Any) -> int | None:
    """Which storage a tensor lies in; None for one without memory of its own."""
    return value.untyped_storage().data_ptr() if _has_memory(value) else None


def held_storages(output_graph: Any) -> dict[str, int]:
    """The storages of the tensors that the locals of a frame were when it was called."""
    found = {f"L['{name}']": storage_of(held) for name, held in output_graph.local_scope.items()}
    return {name: storage for name, storage in found.items() if storage}


def _has_memory(value: Any) -> bool:
    if type(value) not in _PLAIN and not isinstance(value, torch.nn.Buffer):
        return False
    if isinstance(value, FakeTensor) or value.layout is not torch.strided or value.is_meta:
        return False
    try:
        value.data_ptr()
    except RuntimeError:  # inside a transform of functions, or not initialised yet
        return False
    return True


def written_only_as_data(value: torch.Tensor) -> bool:
    """Whether a tensor is a view that autograd lets nobody write, but through ``data``."""
    return (
        value.requires_grad
        and value._is_view()
        and _get_creation_meta(value) is not CreationMeta.DEFAULT
    )


def _is_held(value: torch.Tensor, source: Any) -> bool:
    if isinstance(value, torch.nn.Parameter):
        return True
    return is_from_unspecialized_nn_module_source(source) or is_from_optimizer_source(source)
