"""The overflow guards of encoder-decoder models, in the spellings found in the wild.

Inputs overflow (inf or nan) in one set and do not in the other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import InputSets
from ..support.program import DROP, WHERE, Family, keep

FAMILY = Family("transformers_guards")


def half(seed: int) -> InputSets:
    x = torch.linspace(-2, 2, 24).reshape(2, 3, 4).half()
    overflow = x.clone()
    overflow[0, 1, 2] = float("inf")
    nan = x.clone()
    nan[1, 0, 0] = float("nan")
    return [(x,), (overflow,), (nan,)]


def single(seed: int) -> InputSets:
    return [(x.float(),) for (x,) in half(seed)]


@FAMILY.program(half, WHERE, grad=True, tags="contexts")
def isinf_or_isnan(x: Tensor) -> Tensor:
    h = x * 2
    if h.dtype == torch.float16 and (torch.isinf(h).any() or torch.isnan(h).any()):
        clamp_value = torch.finfo(h.dtype).max - 1000
        h = torch.clamp(h, min=-clamp_value, max=clamp_value)
    return h


@FAMILY.program(half, WHERE, grad=True)
def not_isfinite_all(x: Tensor) -> Tensor:
    h = x + 1
    if h.dtype == torch.float16 and not torch.isfinite(h).all():
        clamp_value = torch.finfo(h.dtype).max - 1000
        h = torch.clamp(h, min=-clamp_value, max=clamp_value)
    return h


@FAMILY.program(single, WHERE, grad=True, tags="inductor contexts")
def float32_isinf_or_isnan(x: Tensor) -> Tensor:
    h = x * 2
    if torch.isinf(h).any() or torch.isnan(h).any():
        clamp_value = torch.finfo(h.dtype).max - 1000
        h = torch.clamp(h, min=-clamp_value, max=clamp_value)
    return h


@FAMILY.program(single, grad=True)
def guard_that_does_not_apply(x: Tensor) -> Tensor:
    h = x * 2
    if h.dtype == torch.float16 and not torch.isfinite(h).all():
        h = h.clamp(-60000, 60000)
    return h


@FAMILY.program(half, WHERE, grad=True)
def tensor_methods(x: Tensor) -> Tensor:
    h = x * 0.5
    if h.isinf().any() or h.isnan().any():
        h = h.clamp(-1e4, 1e4)
    return h


@FAMILY.program(half, WHERE, grad=True)
def clamp_value_by_where(x: Tensor) -> Tensor:
    # T5's older spelling computes the bound with torch.where first.
    h = x * 2
    if h.dtype == torch.float16:
        bound = torch.where(
            torch.isinf(h).any(), torch.finfo(h.dtype).max - 1000, torch.finfo(h.dtype).max
        )
        if torch.isnan(h).any():
            h = torch.nan_to_num(h)
        h = torch.clamp(h, min=-bound, max=bound)
    return h


@FAMILY.program(single, WHERE, grad=True, tags="contexts")
class GuardInTraining(nn.Module):
    """DETR's layers clamp only in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        if self.training:
            if not torch.isfinite(h).all():
                clamp_value = torch.finfo(h.dtype).max - 1000
                h = torch.clamp(h, min=-clamp_value, max=clamp_value)
        return h


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.fc1 = nn.Linear(4, 8)
        self.fc2 = nn.Linear(8, 4)

    def forward(self, hidden: Tensor, output_attentions: bool = False) -> tuple[Tensor, ...]:
        residual = hidden
        scores = (hidden @ hidden.transpose(1, 2)).softmax(-1)
        hidden = residual + self.self_attn(scores @ hidden)
        hidden = self.norm(hidden)
        residual = hidden
        hidden = residual + self.fc2(F.gelu(self.fc1(hidden)))
        if torch.isinf(hidden).any() or torch.isnan(hidden).any():
            clamp_value = torch.finfo(hidden.dtype).max - 1000
            hidden = torch.clamp(hidden, min=-clamp_value, max=clamp_value)
        outputs: tuple[Tensor, ...] = (hidden,)
        if output_attentions:
            outputs += (scores,)
        return outputs


# After a LayerNorm an infinity has become NaN: isinf alone never finds one here.
@FAMILY.program(single, WHERE, grad=True, one_sided=True, tags="inductor contexts")
class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return x


@FAMILY.program(single, WHERE, grad=True, one_sided=True)
class EncoderWithHiddenStates(nn.Module):
    """All hidden states and attentions are returned, as with output_hidden_states=True."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))

    def forward(self, x: Tensor) -> dict[str, Any]:
        states: tuple[Tensor, ...] = ()
        attentions: tuple[Tensor, ...] = ()
        for layer in self.layers:
            states = (*states, x)
            outputs = layer(x, output_attentions=True)
            x = outputs[0]
            attentions += (outputs[1],)
        return {"last": x, "states": (*states, x), "attentions": attentions}


@FAMILY.program(half, WHERE)
def clamp_in_place(x: Tensor) -> Tensor:
    h = x * 2
    if torch.isinf(h).any():
        h.clamp_(-60000, 60000)
    return h


@FAMILY.program(half, WHERE, grad=True)
def guard_on_the_input_itself(x: Tensor) -> Tensor:
    if torch.isinf(x).any() or torch.isnan(x).any():
        x = torch.clamp(x, min=-60000, max=60000)
    return x


def clamp_overflow(h: Tensor, offset: float = 1000) -> Tensor:
    """The helper that vLLM's models share (cast_overflow_tensors)."""
    if h.isinf().any() or h.isnan().any():
        clamp_value = torch.finfo(h.dtype).max - offset
        h = torch.clamp(h, min=-clamp_value, max=clamp_value)
    return h


@FAMILY.program(half, WHERE, grad=True)
def shared_helper(x: Tensor) -> Tensor:
    return clamp_overflow(x * 2) + clamp_overflow(x - 1, offset=2000)


def masks(seed: int) -> InputSets:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    none = torch.zeros(3, 4, dtype=torch.bool)
    some = none.clone()
    some[1, 2:] = True
    return [(x.clone(), none), (x.clone(), some)]


@FAMILY.program(masks, DROP, grad=True, tags="inductor")
def masked_fill_if_any(x: Tensor, mask: Tensor) -> Tensor:
    scores = x * 0.5
    if mask.any():
        scores = scores.masked_fill(mask, float("-inf"))
    return scores.softmax(-1)


@FAMILY.program(masks, DROP)
def masked_store_if_any(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[mask] = 0.0
    return h


@FAMILY.program(masks, WHERE, grad=True)
def mask_becomes_none(x: Tensor, mask: Tensor) -> Tensor:
    attention_mask: Tensor | None = mask
    if not mask.any():
        attention_mask = None
    scores = x / math.sqrt(4)
    if attention_mask is not None:
        scores = scores.masked_fill(attention_mask, -1e9)
    return scores.softmax(-1)


@FAMILY.program(masks, keep("shape_mismatch") | keep("untraceable") | keep("partial_op"))
def rows_kept_if_any(x: Tensor, mask: Tensor) -> Tensor:
    keep_row = mask.any(1)
    if keep_row.any():
        x = x[keep_row]
    return x * 2
