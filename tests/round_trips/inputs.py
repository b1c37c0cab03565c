"""Draws of arguments: ordinary numbers and those that break arithmetic, in every dtype and layout."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .program import Calls

NAN, INF = float("nan"), float("inf")
FLOATS = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
}
INTEGERS = {"i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8}


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Random numbers of either sign; for integers, of -8 to 8 (0 to 8 if unsigned)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if not dtype.is_floating_point and dtype != torch.bool:
        values = (values * 4).round().clamp(0 if dtype == torch.uint8 else -8, 8)
    if dtype == torch.bool:
        values = values > 0
    return values.to(dtype)


def placed(x: Tensor, value: float) -> Tensor:
    """A copy with one element replaced."""
    x = x.clone()
    if x.numel():
        x.view(-1)[x.numel() // 2] = value
    return x


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Calls]:
    """One argument: ordinary, zeros, with NaN, with an infinity, large, tiny."""

    def build() -> Calls:
        x = normal(*shape, dtype=dtype)
        large = torch.finfo(dtype).max / 4
        every = [x, torch.zeros_like(x), placed(x, NAN), placed(x, -INF), x * large, x * 6e-8]
        return [(one,) for one in every]

    return build


def layouts(dtype: torch.dtype = torch.float32) -> Callable[[], Calls]:
    """One argument, as users get them: sliced, transposed, reversed, expanded, of one element."""

    def build() -> Calls:
        x = normal(4, 6, dtype=dtype)
        return [(x[:, ::2],), (x[:3, :4].t(),), (x.flip(0),), (x[:1].expand(3, 6),), (x[:1, :1],)]

    return build


def every_float(*shape: int) -> dict[str, Callable[[], Calls]]:
    """One argument in every floating dtype, and float32 in other layouts."""
    made = {name: floats(*shape, dtype=dtype) for name, dtype in FLOATS.items()}
    return {**made, "layouts": layouts()}


def beside(
    *values: float, dtype: torch.dtype = torch.float32, like: torch.dtype | None = None
) -> Callable[[], Calls]:
    """Two arguments: a tensor to compute with, and each of the values as a tensor without axes."""

    def build() -> Calls:
        return [
            (normal(3, 5, dtype=like or dtype), torch.tensor(value, dtype=dtype))
            for value in values
        ]

    return build


def pairs(
    dtypes: dict[str, tuple[torch.dtype, torch.dtype]], *values: float
) -> dict[str, Callable[[], Calls]]:
    """:func:`beside` by name, for (dtype of the tensor, dtype of the number)."""
    return {
        name: beside(*values, dtype=number, like=tensor)
        for name, (tensor, number) in dtypes.items()
    }


def calls(build: Callable[[], Calls]) -> Callable[[], Calls]:
    """Hand-written calls; a name for what is passed."""
    return build
