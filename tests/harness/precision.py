"""Programs and their arguments in float64, or on another device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fusepass.testing.precision import Precision, default_dtype


@contextlib.contextmanager
def in_precision(dtype: torch.dtype, *, same_draws: bool = False) -> Iterator[None]:
    """Floating dtypes that a program names become one dtype.

    With ``same_draws``, random numbers stay those that the program draws in float32.
    """
    with default_dtype(dtype), (_SameDraws if same_draws else Precision)(dtype):
        yield


def doubled(value: Any) -> Any:
    """A module, an object, or arguments, with float64 for every floating dtype."""
    return _converted(value, torch.float64)


def moved(value: Any, device: str) -> Any:
    """A module, an object, or arguments, on a device."""
    return value if device == "cpu" else _converted(value, device)


def _converted(value: Any, to: torch.dtype | str) -> Any:
    if isinstance(value, Tensor):
        fits = isinstance(to, str) or value.is_floating_point()
        return value.to(to) if fits else value
    if isinstance(value, (tuple, list)):
        return type(value)(_converted(item, to) for item in value)
    if isinstance(value, nn.Module):
        value.to(to)
        for module in value.modules():
            _convert_attributes(module, to)
    elif hasattr(value, "__dict__"):
        _convert_attributes(value, to)
    return value


def _convert_attributes(owner: Any, to: torch.dtype | str) -> None:
    for name, value in list(vars(owner).items()):
        if not name.startswith("_") and not isinstance(value, nn.Module):
            setattr(owner, name, _converted(value, to))


class _SameDraws(Precision):
    """Draws in float32, so that the generator gives the numbers it gives the program."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("rand_like", "randn_like"):
            return func(args[0].float()).double()
        if name in ("rand", "randn"):
            return func(*args, dtype=torch.float32).double()
        if name == "dropout":
            kept = func(torch.ones_like(args[0], dtype=torch.float32), *args[1:], **(kwargs or {}))
            return args[0] * kept.double()
        return super().__torch_function__(func, types, args, kwargs)
