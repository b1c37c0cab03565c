"""Suite ``sync``: programs that branch on a tensor, so that the device waits for the host.

Each carries the guard that fp16 encoders have had since 2020, "if anything overflowed, clamp", or a
branch on a sum. On CUDA the models have their published sizes; on CPU they are small, so that the
suite takes minutes, and transformers' models still run in float16, because their guard looks at the
dtype. Weights are random and nothing is downloaded.

:func:`programs` is what is timed; :func:`compile_programs` is what ``--compile-only`` compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fusepass.bench.program import Program
from tests.perf.suites import twins

Model = tuple[Callable[..., Any], tuple[Any, ...] | tuple[tuple[Any, ...], dict[str, Any]]]


class ClampLayer(nn.Module):
    """Pre-norm feed-forward block with the overflow guard of fp16 encoders behind it."""

    def __init__(self, width: int, hidden: int, branch: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.branch = branch

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """[tokens, width] -> [tokens, width]."""
        h = h + self.down(nn.functional.gelu(self.up(self.norm(h))))
        limit = torch.finfo(h.dtype).max - 1000
        if self.branch:
            if torch.isinf(h).any() or torch.isnan(h).any():
                h = torch.clamp(h, min=-limit, max=limit)
            return h
        overflow = torch.isinf(h).any() | torch.isnan(h).any()
        return torch.where(overflow, torch.clamp(h, min=-limit, max=limit), h)


class ClampEncoder(nn.Module):
    """A stack of :class:`ClampLayer`; with ``branch=False`` the guards are ``torch.where``."""

    def __init__(self, layers: int, width: int, hidden: int, branch: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ClampLayer(width, hidden, branch) for _ in range(layers))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """[tokens, width] -> [tokens, width]."""
        for layer in self.layers:
            h = layer(h)
        return h


def clamp_encoder(
    device: str, tokens: int, layers: int, width: int, dtype: torch.dtype, branch: bool = True
) -> Model:
    """LayerNorm, Linear(width, 4 width), GELU, Linear back, residual and guard in every layer."""
    with torch.device(device):
        model = ClampEncoder(layers, width, 4 * width, branch).to(dtype).eval()
        return model, (torch.randn(tokens, width, dtype=dtype),)


def bart(device: str, batch: int, tokens: int, config: dict[str, int]) -> Model:
    """transformers' BartModel as it is, float16; every encoder layer has the guard."""
    from transformers import BartConfig, BartModel

    settings = BartConfig(**config)
    with torch.device(device):
        model = BartModel(settings).half().eval()
        ids = torch.randint(4, settings.vocab_size, (2, batch, tokens))
    named = {"input_ids": ids[0], "decoder_input_ids": ids[1], "use_cache": False}
    return model, ((), named)


def bart_with_where(device: str, batch: int, tokens: int, config: dict[str, int]) -> Model:
    """The same model with the guards of its encoder layers as ``torch.where``."""
    model, inputs = bart(device, batch, tokens, config)
    assert isinstance(model, nn.Module)
    return twins.bart_guards_as_where(model), inputs


def longt5(device: str, batch: int, tokens: int, config: dict[str, int]) -> Model:
    """transformers' LongT5EncoderModel as it is, float16; every block has the guard twice."""
    from transformers import LongT5Config, LongT5EncoderModel

    settings = LongT5Config(feed_forward_proj="gated-gelu", **config)
    with torch.device(device):
        model = LongT5EncoderModel(settings).half().eval()
        ids = torch.randint(4, settings.vocab_size, (batch, tokens))
        # Given explicitly: left out, the model makes one when it runs eagerly and not under Dynamo.
        mask = torch.ones(batch, tokens, dtype=torch.long)
    return model, ((), {"input_ids": ids, "attention_mask": mask})


def longt5_with_where(device: str, batch: int, tokens: int, config: dict[str, int]) -> Model:
    """The same model with both guards of its blocks as ``torch.where``."""
    model, inputs = longt5(device, batch, tokens, config)
    assert isinstance(model, nn.Module)
    return twins.longt5_guards_as_where(model), inputs


def branch_on_sum(device: str, rows: int, inner: int, columns: int, branch: bool = True) -> Model:
    """A product, and a sign that depends on its sum: one branch, one wait."""

    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        product = a @ b
        if product.sum() % 2:
            output = product + c
        else:
            output = product - c
        return output * 2

    def twin(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        product = a @ b
        return torch.where((product.sum() % 2).bool(), product + c, product - c) * 2

    with torch.device(device):
        a, b = torch.randn(rows, inner), torch.randn(inner, columns)
        return program if branch else twin, (a, b, torch.randn(rows, columns))


BART_LARGE = {
    "vocab_size": 50265, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12,
    "encoder_attention_heads": 16, "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
}  # fmt: skip
BART_SMALL = {
    "vocab_size": 1000, "d_model": 64, "encoder_layers": 3, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 128,
}  # fmt: skip
LONGT5_BASE = {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "d_kv": 64}
LONGT5_SMALL = {
    "vocab_size": 1000, "d_model": 64, "d_ff": 128, "num_layers": 3, "num_heads": 4, "d_kv": 16,
    "local_radius": 15,
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """What depends on the device."""

    clamp_tokens: tuple[int, int, int]
    clamp_layers: int
    clamp_width: int
    clamp_dtype: torch.dtype
    bart: dict[str, int]
    bart_shapes: tuple[tuple[int, int], tuple[int, int]]  # (batch, tokens)
    longt5: dict[str, int]
    longt5_shapes: tuple[tuple[int, int], tuple[int, int]]
    product: tuple[int, int, int]  # rows, inner, columns


SIZES = {
    "cuda": Sizes(
        clamp_tokens=(16, 256, 4096), clamp_layers=24, clamp_width=1024, clamp_dtype=torch.float16,
        bart=BART_LARGE, bart_shapes=((1, 128), (8, 512)),
        longt5=LONGT5_BASE, longt5_shapes=((1, 128), (8, 512)), product=(1024, 8192, 2048),
    ),
    "cpu": Sizes(
        clamp_tokens=(16, 64, 512), clamp_layers=4, clamp_width=128, clamp_dtype=torch.float32,
        bart=BART_SMALL, bart_shapes=((1, 16), (4, 64)),
        longt5=LONGT5_SMALL, longt5_shapes=((1, 32), (2, 128)), product=(64, 512, 128),
    ),
}  # fmt: skip
COMPILE_LAYERS = (12, 24, 48, 96)


def programs(device: str) -> tuple[Program, ...]:
    """The suite, sized for ``device``."""
    sizes = SIZES[device]
    found = [
        _clamp(f"clamp-encoder-{name}", device, sizes, tokens, sizes.clamp_layers)
        for name, tokens in zip(("short", "middle", "long"), sizes.clamp_tokens, strict=True)
    ]
    for name, shape in zip(("short", "long"), sizes.bart_shapes, strict=True):
        found.append(
            Program(
                f"bart-{name}",
                partial(bart, device, *shape, sizes.bart),
                _record(shape, sizes.bart, "encoder_layers", "d_model"),
                twin=partial(bart_with_where, device, *shape, sizes.bart),
            )
        )
    for name, shape in zip(("short", "long"), sizes.longt5_shapes, strict=True):
        found.append(
            Program(
                f"longt5-{name}",
                partial(longt5, device, *shape, sizes.longt5),
                _record(shape, sizes.longt5, "num_layers", "d_model"),
                twin=partial(longt5_with_where, device, *shape, sizes.longt5),
            )
        )
    rows, inner, columns = sizes.product
    found.append(
        Program(
            "branch-on-sum",
            partial(branch_on_sum, device, rows, inner, columns),
            {"rows": rows, "inner": inner, "columns": columns, "dtype": "float32", "tf32": True},
            matmul_precision="high",
            twin=partial(branch_on_sum, device, rows, inner, columns, branch=False),
        )
    )
    return tuple(found)


def compile_programs(device: str) -> tuple[Program, ...]:
    """For the compile-time table: the clamp encoder with more and more layers, and BART."""
    sizes = SIZES[device]
    clamps = [
        _clamp(f"clamp-encoder-{layers}-layers", device, sizes, sizes.clamp_tokens[0], layers)
        for layers in COMPILE_LAYERS
    ]
    return (*clamps, *(one for one in programs(device) if one.name == "bart-short"))


def _clamp(name: str, device: str, sizes: Sizes, tokens: int, layers: int) -> Program:
    arguments = (device, tokens, layers, sizes.clamp_width, sizes.clamp_dtype)
    return Program(
        name,
        partial(clamp_encoder, *arguments),
        {
            "tokens": tokens,
            "layers": layers,
            "width": sizes.clamp_width,
            "dtype": str(sizes.clamp_dtype).removeprefix("torch."),
        },
        twin=partial(clamp_encoder, *arguments, branch=False),
        family="clamp-encoder",
        layers=layers,
    )


def _record(
    shape: tuple[int, int], config: dict[str, int], layers: str, width: str
) -> dict[str, int | str]:
    batch, tokens = shape
    return {
        "batch": batch,
        "tokens": tokens,
        "layers": config[layers],
        "width": config[width],
        "dtype": "float16",
    }
