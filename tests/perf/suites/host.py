"""Suite ``host``: round trips to the host other than branches, and their twins without them.

``normalised`` divides the hidden states by their norm, read as a Python number, in every layer;
``masked`` builds its causal mask and positions on the CPU in every forward; ``both`` does both.
``print-loss`` is a training step that prints its loss; its twin reads the loss once and prints
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fusepass.bench.program import Program
from tests.perf.training_steps import Training


class Attention(nn.Module):
    """Pre-norm self-attention with an additive mask, and residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.heads = heads

    def forward(self, h: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """[tokens, width], [tokens, tokens] -> [tokens, width]."""
        tokens, width = h.shape
        parts = self.inputs(self.norm(h)).view(tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(1, 2, 0, 3).unbind(0)
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        if mask is not None:
            scores = scores + mask
        mixed = scores.softmax(-1) @ value
        result: torch.Tensor = self.output(mixed.transpose(0, 1).reshape(tokens, width))
        return h + result


class Layer(nn.Module):
    """Attention and a feed-forward block; divides by the norm if ``normalised``."""

    def __init__(self, width: int, heads: int, normalised: bool, by_hand: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.normalised, self.by_hand = normalised, by_hand

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """[tokens, width], [tokens, tokens] -> [tokens, width]."""
        x = self.attention(x, mask)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        if self.normalised:
            x = x / (x.norm() if self.by_hand else x.norm().item())
        return x


class Encoder(nn.Module):
    """A stack of :class:`Layer` over learnt positions.

    Args:
        sizes: layers, width and heads.
        normalised: whether each layer divides by the norm of its result.
        masked: whether mask and positions are built in each forward.
        by_hand: nothing touches the host: the norm stays a tensor, the mask is made on the device.
    """

    def __init__(self, sizes: Sizes, normalised: bool, masked: bool, by_hand: bool) -> None:
        super().__init__()
        self.positions = nn.Embedding(sizes.tokens, sizes.width)
        self.layers = nn.ModuleList(
            Layer(sizes.width, sizes.heads, normalised, by_hand) for _ in range(sizes.layers)
        )
        self.masked, self.by_hand = masked, by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, width] -> [tokens, width]."""
        mask = None
        if self.masked:
            place = x.device if self.by_hand else torch.device("cpu")
            tokens = x.shape[0]
            mask = torch.full((tokens, tokens), float("-inf"), device=place).triu(1).to(x.device)
            x = x + self.positions(torch.arange(tokens, device=place).to(x.device))
            mask = mask.to(x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return x


class PrintedLoss(nn.Module):
    """A small multilayer perceptron whose ``forward`` returns its loss, and prints it."""

    def __init__(self, sizes: Sizes, by_hand: bool) -> None:
        super().__init__()
        width = sizes.width
        self.body = nn.Sequential()
        for _ in range(sizes.layers):
            self.body.extend([nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)])
        self.by_hand = by_hand

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Two of [batch, width] -> a scalar."""
        loss = F.mse_loss(self.body(x), target)
        if self.by_hand:
            loss.item()
        else:
            print(loss)
        return loss


@dataclass(frozen=True)
class Sizes:
    """What depends on the device."""

    layers: int
    width: int
    heads: int
    tokens: int
    batch: int


SIZES = {"cuda": Sizes(24, 512, 8, 16, 256), "cpu": Sizes(3, 32, 2, 8, 16)}
KINDS = {"normalised": (True, False), "masked": (False, True), "both": (True, True)}


def encoder(
    device: str, normalised: bool, masked: bool, by_hand: bool = False
) -> tuple[nn.Module, tuple[Any, ...]]:
    """The encoder in evaluation mode, float32, and its input."""
    sizes = SIZES[device]
    with torch.device(device):
        model = Encoder(sizes, normalised, masked, by_hand).eval()
        return model, (torch.randn(sizes.tokens, sizes.width),)


def printed_loss(
    device: str, training: Training, by_hand: bool = False
) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model, and ``(inputs, targets)`` of all steps."""
    sizes = SIZES[device]
    with torch.device(device):
        model = PrintedLoss(sizes, by_hand).train()
        x = torch.randn(training.curve_count * training.steps, sizes.batch, sizes.width)
        return model, (x, torch.tanh(x.roll(1, dims=-1)))


def programs(device: str) -> tuple[Program, ...]:
    """The suite, sized for ``device``."""
    sizes = SIZES[device]
    record = {"layers": sizes.layers, "width": sizes.width, "dtype": "float32"}
    found = [
        Program(
            name,
            partial(encoder, device, *flags),
            {**record, "tokens": sizes.tokens},
            twin=partial(encoder, device, *flags, by_hand=True),
        )
        for name, flags in KINDS.items()
    ]
    training = Training(curve_count=1)
    step = partial(printed_loss, device, training)
    found.append(
        Program(
            "print-loss",
            step,
            {**record, "batch": sizes.batch, "optimizer": "AdamW, fused, eager"},
            twin=partial(step, by_hand=True),
            training=training,
        )
    )
    return tuple(found)
