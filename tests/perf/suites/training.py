"""Suite ``training``: one step of a model that has a guard in every layer, and its loss curve.

A pre-norm transformer encoder whose feed-forward blocks carry the overflow guard of suite ``sync``,
trained on a regression task. The batch is small in half of the programs, where a step is what the
host needs to start it, and larger in the others. On CPU everything is tiny.

A program's inputs hold every batch of every curve along dimension 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fusepass.bench.program import Program
from tests.perf.suites.sync import ClampLayer
from tests.perf.training_steps import Training


class Attention(nn.Module):
    """Pre-norm self-attention with residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.heads = heads

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] -> [batch, tokens, width]."""
        batch, tokens, width = h.shape
        parts = self.inputs(self.norm(h)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return h + result


class GuardedEncoder(nn.Module):
    """Attention and a guarded feed-forward block in each layer; returns the mean squared error."""

    def __init__(self, layers: int, width: int, heads: int, branch: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(layers):
            self.layers.append(Attention(width, heads))
            self.layers.append(ClampLayer(width, 4 * width, branch))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Two of [batch, tokens, width] -> a scalar."""
        h = x
        for layer in self.layers:
            h = layer(h)
        # Autocast leaves the head's result in bfloat16; the loss is taken in the target's dtype.
        return F.mse_loss(self.head(self.norm(h)).to(target.dtype), target)


@dataclass(frozen=True)
class Sizes:
    """What depends on the device."""

    layers: int
    width: int
    heads: int
    shapes: dict[str, tuple[int, int]]  # (batch, tokens)
    compile_layers: tuple[int, ...]


SIZES = {
    "cuda": Sizes(12, 512, 8, {"small": (4, 64), "large": (16, 512)}, (6, 12, 24)),
    "cpu": Sizes(2, 32, 2, {"small": (2, 8), "large": (4, 16)}, (2, 4)),
}
DTYPES = {"fp32": None, "bf16": torch.bfloat16}


def guarded_encoder(
    device: str, layers: int, shape: tuple[int, int], training: Training, branch: bool = True
) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model, and ``(inputs, targets)`` of all batches of all curves.

    The target of a token is a fixed map of it and of the one before it, so that there is something
    to learn for every part of the model.
    """
    sizes = SIZES[device]
    with torch.device(device):
        model = GuardedEncoder(layers, sizes.width, sizes.heads, branch).train()
        x = torch.randn(training.curve_count * training.steps, *shape, sizes.width)
        teacher = torch.randn(sizes.width, sizes.width) / sizes.width**0.5
        target = torch.tanh((x + x.roll(1, dims=-2)) @ teacher)
        return model, (x, target)


def programs(device: str) -> tuple[Program, ...]:
    """The suite, sized for ``device``."""
    sizes = SIZES[device]
    found = []
    for size, shape in sizes.shapes.items():
        for dtype, autocast in DTYPES.items():
            training = Training(curve_count=4 if size == "small" else 2, autocast=autocast)
            found.append(_program(f"step-{size}-{dtype}", device, sizes.layers, shape, training))
    return tuple(found)


def compile_programs(device: str) -> tuple[Program, ...]:
    """For the compile-time table: forward and backward of more and more layers."""
    shape = SIZES[device].shapes["small"]
    training = Training(steps=1, curve_count=1)
    return tuple(
        _program(f"step-{layers}-layers", device, layers, shape, training, twin=True)
        for layers in SIZES[device].compile_layers
    )


def _program(
    name: str,
    device: str,
    layers: int,
    shape: tuple[int, int],
    training: Training,
    twin: bool = False,
) -> Program:
    sizes = SIZES[device]
    make = partial(guarded_encoder, device, layers, shape, training)
    autocast = None if training.autocast is None else str(training.autocast)
    return Program(
        name,
        make,
        {
            "batch": shape[0],
            "tokens": shape[1],
            "layers": layers,
            "width": sizes.width,
            "dtype": "float32",
            "autocast": autocast and autocast.removeprefix("torch."),
            "optimizer": "AdamW, fused, eager",
            "lr": training.lr,
            "steps": training.steps,
            "curves": training.curve_count,
        },
        twin=partial(make, branch=False) if twin else None,
        training=training,
        family="guarded-encoder" if twin else None,
        layers=layers if twin else None,
    )
