"""Twins: the same model with its branches on tensors written by hand as ``torch.where``.

They are the baseline for compile time. A program of our own writes its twin down; for a model of
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


class _Clamped(nn.Module):
    """An encoder layer that ends in the guard, written as ``torch.where``."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = self.layer(*args, **kwargs)
        hidden = result.to(self.dtype)
        limit = torch.finfo(self.dtype).max - 1000
        clamped = torch.clamp(hidden, min=-limit, max=limit)
        return torch.where(torch.isfinite(hidden).all(), hidden, clamped)


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
