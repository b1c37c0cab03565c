"""Programs run with every floating dtype turned into one: float64 gives the exact result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CASTS = {"float", "half", "bfloat16", "double"}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@contextlib.contextmanager
def in_precision(dtype: torch.dtype, *, casts_copy: bool = False) -> Iterator[None]:
    """Floating dtypes that a program names become one dtype.

    A program on bfloat16 may write to a tensor after ``x.float()``, which is a copy there. With
    ``casts_copy`` it is one here, too.
    """
    with default_dtype(dtype), Precision(dtype, casts_copy=casts_copy):
        yield


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Floating-point tensors that a program makes have this dtype unless it names one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Precision(TorchFunctionMode):
    """Every floating dtype that a torch call names becomes one dtype."""

    def __init__(self, dtype: torch.dtype, *, casts_copy: bool = False) -> None:
        super().__init__()
        self.dtype, self.casts_copy = dtype, casts_copy

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CASTS and args and isinstance(args[0], Tensor):
            return args[0].to(self.dtype, copy=self.casts_copy)
        given = args[:1]
        args = tuple(self.dtype if _is_float(value) else value for value in args)
        named = {k: self.dtype if _is_float(v) else v for k, v in (kwargs or {}).items()}
        made = func(*args, **named)
        same = name in ("to", "type") and given and made is given[0]
        return made.clone() if same and self.casts_copy else made


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in _FLOATS
