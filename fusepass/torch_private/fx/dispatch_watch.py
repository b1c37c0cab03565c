"""Watch every operation that reaches torch's dispatcher. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager
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


def marked(name: str) -> AbstractContextManager[Any]:
    """A range of that name in a profiler's trace; costs next to nothing without one."""
    from torch._C._profiler import _RecordFunctionFast

    return _RecordFunctionFast(name)


@contextlib.contextmanager
def explicit_waits(around: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """Calls by which a program waits for a CUDA device run inside ``around(name)`` meanwhile."""
    places: list[tuple[Any, str, str]] = [
        (torch._C, "_cuda_synchronize", "torch.cuda.synchronize"),
        (torch._C, "_accelerator_synchronizeDevice", "torch.accelerator.synchronize"),
        (torch._C, "_cuda_emptyCache", "torch.cuda.empty_cache"),
        (torch.cuda.Stream, "synchronize", "Stream.synchronize"),
        (torch.cuda.Event, "synchronize", "Event.synchronize"),
    ]
    with contextlib.ExitStack() as undo:
        for owner, name, shown in places:
            original = getattr(owner, name, None)
            if original is not None:
                setattr(owner, name, _inside(original, shown, around))
                undo.callback(setattr, owner, name, original)
        yield


def _inside(
    original: Callable[..., Any], shown: str, around: Callable[[str], AbstractContextManager[Any]]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with around(shown):
            return original(*args, **kwargs)

    return call
