"""Seeing every operation as it reaches torch's dispatcher. Run on torch 2.11, 2.13, 2.15."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Watching(TorchDispatchMode):
    """Hands every operation run inside to ``handler``, which runs it.

    What torch.compile compiles inside is compiled as if this were not there.
    """

    supports_higher_order_operators = True

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self.handler = handler

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Torch's switch for that."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.handler(func, args, kwargs or {})


def operation_name(operator: Any) -> str:
    """Name of what the dispatcher runs, without namespace and overload (``nonzero``)."""
    packet = getattr(operator, "overloadpacket", operator)
    return str(getattr(packet, "__name__", packet))


def qualified_name(operator: Any) -> str:
    """Namespace and name (``aten.nonzero``)."""
    space = getattr(operator, "namespace", "")
    name = operation_name(operator)
    return f"{space}.{name}" if space else name


def tensor_keyed_dict() -> MutableMapping[torch.Tensor, Any]:
    """A dict from tensors, by identity, that keeps none of them alive."""
    return WeakTensorKeyDictionary()
