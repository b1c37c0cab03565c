"""Suite ``plain``: programs that branch on no tensor, where there is nothing to capture.

Here fusepass must cost nothing: no time per call, and next to none when compiling. transformers'
models come unmodified from a config; they branch a lot, on Python values. The other two are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fusepass.bench.program import Program

Model = tuple[nn.Module, Any]


class FeedForward(nn.Module):
    """The clamp encoder's block without its guard."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """[tokens, width] -> [tokens, width]."""
        result: torch.Tensor = self.down(F.gelu(self.up(self.norm(h))))
        return h + result


class Residual(nn.Module):
    """Convolution, batch norm, ReLU, the same again, and the input added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, channels, height, width] -> the same."""
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(inner)))


def encoder(device: str, tokens: int, width: int, layers: int, dtype: torch.dtype) -> Model:
    """A stack of :class:`FeedForward`."""
    with torch.device(device):
        model = nn.Sequential(*(FeedForward(width) for _ in range(layers))).to(dtype).eval()
        return model, (torch.randn(tokens, width, dtype=dtype),)


def convolutions(device: str, channels: int, size: int, blocks: int, dtype: torch.dtype) -> Model:
    """A stack of :class:`Residual` on one square image."""
    with torch.device(device):
        model = nn.Sequential(*(Residual(channels) for _ in range(blocks))).to(dtype).eval()
        return model, (torch.randn(1, channels, size, size, dtype=dtype),)


def bert(device: str, tokens: int, width: int, layers: int, dtype: torch.dtype) -> Model:
    """transformers' BertModel as it is."""
    from transformers import BertConfig, BertModel

    heads = max(2, width // 64)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width,
    )  # fmt: skip
    with torch.device(device):
        model = BertModel(config).to(dtype).eval()
        ids = torch.randint(4, config.vocab_size, (1, tokens))
    return model, ((), {"input_ids": ids})


def gpt2(device: str, tokens: int, width: int, layers: int, dtype: torch.dtype) -> Model:
    """transformers' GPT2Model as it is, without its cache."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=width, n_layer=layers, n_head=max(2, width // 64))
    with torch.device(device):
        model = GPT2Model(config).to(dtype).eval()
        ids = torch.randint(4, config.vocab_size, (1, tokens))
    return model, ((), {"input_ids": ids, "use_cache": False})


@dataclass(frozen=True)
class Sizes:
    """What depends on the device."""

    dtype: torch.dtype
    tokens: int
    width: int
    layers: int
    encoder: tuple[int, int]  # width, layers
    convolutions: tuple[int, int, int]  # channels, size, blocks


SIZES = {
    "cuda": Sizes(torch.float16, 128, 768, 12, (1024, 24), (128, 28, 16)),
    "cpu": Sizes(torch.float32, 16, 32, 2, (32, 8), (8, 8, 3)),
}


def programs(device: str) -> tuple[Program, ...]:
    """The suite, sized for ``device``; it is also what ``--compile-only`` compiles."""
    sizes = SIZES[device]
    dtype = str(sizes.dtype).removeprefix("torch.")
    found = []
    for name, make in (("bert", bert), ("gpt2", gpt2)):
        shape = {"tokens": sizes.tokens, "width": sizes.width, "layers": sizes.layers}
        build: Callable[[], Model] = partial(make, device, **shape, dtype=sizes.dtype)
        found.append(Program(name, build, {**shape, "dtype": dtype}, branches=False))
    width, layers = sizes.encoder
    shape = {"tokens": sizes.tokens, "width": width, "layers": layers}
    build = partial(encoder, device, **shape, dtype=sizes.dtype)
    found.append(Program("encoder", build, {**shape, "dtype": dtype}, branches=False))
    channels, size, blocks = sizes.convolutions
    shape = {"channels": channels, "size": size, "blocks": blocks}
    build = partial(convolutions, device, **shape, dtype=sizes.dtype)
    found.append(Program("convolutions", build, {**shape, "dtype": dtype}, branches=False))
    return tuple(found)
