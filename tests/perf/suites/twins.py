"""Twins: the same model with its branches on tensors written by hand as ``torch.where``.

They are what capture is held against. A program of our own writes its twin down; for a model of
somebody else's the guard has to be switched off first. transformers' guard looks at the dtype of
the hidden states, so the twin's layers return float32 (exact, since it holds float16 values), which
the guard ignores, and a wrapper turns that back into float16 and clamps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _InFloat32(nn.Module):
    """A module whose result is handed on in float32."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = self.module(*args, **kwargs)
        return result.float()


def _clamp(hidden: torch.Tensor) -> torch.Tensor:
    limit = torch.finfo(hidden.dtype).max - 1000
    return torch.clamp(hidden, min=-limit, max=limit)


def _without_infinity(hidden: torch.Tensor) -> torch.Tensor:
    """LongT5's guard, which lets NaN pass."""
    return torch.where(torch.isinf(hidden).any(), _clamp(hidden), hidden)


class _Clamped(nn.Module):
    """An encoder layer that ends in the guard, written as ``torch.where``."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = self.layer(*args, **kwargs)
        hidden = result.to(self.dtype)
        return torch.where(torch.isfinite(hidden).all(), hidden, _clamp(hidden))


def bart_guards_as_where(model: Any) -> nn.Module:
    """Change a BartModel in place: its encoder's guards become ``torch.where``.

    The guard is the last thing an encoder layer does, right after ``final_layer_norm``.
    """
    layers = model.encoder.layers
    for index, layer in enumerate(layers):
        layer.final_layer_norm = _InFloat32(layer.final_layer_norm)
        layers[index] = _Clamped(layer, torch.float16)
    assert isinstance(model, nn.Module)
    return model


class _FirstInFloat32(nn.Module):
    """A module that returns a tuple, its first tensor handed on in float32."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        first, *rest = self.module(*args, **kwargs)
        return (first.float(), *rest)


class _ClampedBefore(nn.Module):
    """A module behind a guard, in ``dtype``; its result is handed on in float32."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.dtype = dtype

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(_without_infinity(hidden.to(self.dtype)))
        return result.float()


class _FirstClamped(nn.Module):
    """A block that ends in the guard and returns a tuple."""

    def __init__(self, block: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.block = block
        self.dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        first, *rest = self.block(*args, **kwargs)
        return (_without_infinity(first.to(self.dtype)), *rest)


def longt5_guards_as_where(model: Any) -> nn.Module:
    """Change a LongT5EncoderModel in place: both guards of every block become ``torch.where``.

    One stands between attention and feed-forward, the other at the end of the block.
    """
    blocks = model.encoder.block
    for index, block in enumerate(blocks):
        block.layer[0] = _FirstInFloat32(block.layer[0])
        block.layer[-1] = _ClampedBefore(block.layer[-1], torch.float16)
        blocks[index] = _FirstClamped(block, torch.float16)
    assert isinstance(model, nn.Module)
    return model
