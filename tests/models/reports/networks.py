"""Layers and blocks of networks that test what they compute."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .report import InputSets, Reports, attributes, drawn

REPORTS = Reports()
GITHUB = "https://github.com/"


def overflowing() -> InputSets:
    return [(drawn(2, 4),), (drawn(2, 4) / 0,), (torch.tensor([[1.0, float("nan"), 2, 3]] * 2),)]


@REPORTS.of(GITHUB + "pytorch/pytorch/pull/180406", overflowing, grad=True)
def clamps_what_overflows(x: Tensor) -> Tensor:
    if x.isinf().any() or x.isnan().any():
        limit = torch.finfo(x.dtype).max - 1000
        x = torch.clamp(x, min=-limit, max=limit)
    return x * 2


@REPORTS.of(GITHUB + "huggingface/transformers/pull/9487", overflowing, grad=True)
class ClampedBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        states: tuple[Tensor, ...] = ()
        for layer in self.layers:
            states += (hidden,)
            hidden = hidden + layer(hidden)
            if torch.isinf(hidden).any():
                hidden = torch.clamp(hidden, -100.0, 100.0)
        return (*states, hidden)


@REPORTS.of(GITHUB + "huggingface/transformers/pull/36712", overflowing)
def returns_hidden_states_or_none(x: Tensor) -> dict[str, Any]:
    attentions = None
    if torch.isnan(x).any():
        attentions = torch.nan_to_num(x).softmax(-1)
    return {"last": x + 1, "attentions": attentions}


def padded() -> InputSets:
    full, part = torch.ones(2, 4), torch.tensor([[1.0, 1, 1, 0]] * 2)
    return [(drawn(2, 4, 3), full), (drawn(2, 4, 3), part)]


@REPORTS.of(GITHUB + "huggingface/diffusers/pull/12987", padded, grad=True)
def drops_a_mask_of_ones(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    kept: Tensor | None = mask
    if torch.all(mask == 1):
        kept = None
    scores = x @ x.transpose(1, 2)
    if kept is not None:
        scores = scores.masked_fill(kept[:, None] == 0, -1e9)
    return scores.softmax(-1) @ x, kept


@REPORTS.of(GITHUB + "huggingface/transformers/pull/37944", padded)
def mask_or_none_by_zero(x: Tensor, mask: Tensor) -> Tensor:
    causal = mask if mask is not None and 0.0 in mask else None
    if causal is None:
        return F.scaled_dot_product_attention(x, x, x)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=causal[:, None].bool())


@REPORTS.of(GITHUB + "huggingface/transformers/pull/37332", padded)
def is_right_padded(x: Tensor, mask: Tensor) -> Tensor:
    right = bool(mask[:, -1].sum().item() != mask.shape[0])
    if right and x.shape[0] > 1:
        x = x * mask[:, :, None]
    return x.sum(1)


@REPORTS.of(GITHUB + "huggingface/transformers/pull/42325", padded, grad=True)
class BidirectionalMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(3, 3)

    def bias(self, mask: Tensor) -> Tensor | None:
        if mask.all():
            return None
        return (1.0 - mask[:, None]) * -1e4

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.query(x) @ x.transpose(1, 2)
        bias = self.bias(mask)
        if bias is not None:
            scores = scores + bias
        return scores.softmax(-1) @ x


def positions() -> InputSets:
    return [
        (drawn(1, 4, 4), torch.arange(4)[None]),
        (drawn(1, 4, 4), torch.arange(6, 10)[None]),
    ]


@REPORTS.of(GITHUB + "huggingface/transformers/issues/35716", positions)
class TwoFrequencyTables(nn.Module):
    """Frequencies for short or for long sequences, as the positions of a call say."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.tensor([1.0, 0.1]))
        self.register_buffer("long_freq", torch.tensor([0.5, 0.05]))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        length = torch.max(position) + 1
        if length > 8:
            freq = self.long_freq
        else:
            freq = self.inv_freq
        angle = position[..., None] * freq
        table = torch.cat((angle, angle), -1)
        return x * table.cos() + x.flip(-1) * table.sin()


@REPORTS.of(
    GITHUB + "foundation-model-stack/foundation-model-stack/pull/64",
    positions,
    state=attributes("cached", "cos"),
)
class GrowingCache(nn.Module):
    """Cosines are made anew when a position is beyond the table."""

    def __init__(self) -> None:
        super().__init__()
        self.cached = 4
        self.cos = torch.arange(4.0).cos()

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        if position.max() >= self.cached:
            self.cos = torch.arange(16.0).cos()
            self.cached = 16
        return x * self.cos[position][..., None]


def two_scales() -> InputSets:
    return [(drawn(2, 4),), (drawn(2, 4) * 30,), (drawn(2, 4, seed=1),)]


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/95425", two_scales, grad=True)
class LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            to_drop = False
            if self.training:
                dropped = x.abs().mean() > 5  # in place of a random number
                if dropped:
                    to_drop = True
            if not to_drop:
                x = torch.relu(layer(x))
        return x


@REPORTS.of(GITHUB + "pytorch/vision/pull/4301", two_scales, grad=True)
def drops_a_residual(x: Tensor) -> Tensor:
    branch = torch.tanh(x) * x
    if x.abs().mean() > 5:
        return x * 1.0
    return x + branch / 0.9


@REPORTS.of(GITHUB + "castorini/DeeBERT/issues/8", two_scales)
class EarlyExit(nn.Module):
    """Returns at the first classifier that is sure, with the index of its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        for index, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True)):
            x = torch.tanh(layer(x))
            logits = head(x)
            entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
            if entropy < 0.6:
                return logits, index
        return logits, len(self.layers)


@REPORTS.of(GITHUB + "SakanaAI/continuous-thought-machines/pull/44", two_scales)
def stops_thinking(x: Tensor) -> tuple[Tensor, Tensor]:
    steps = torch.full((x.shape[0],), 4)
    for tick in range(4):
        x = torch.tanh(x) * 1.5
        sure = (x.abs().amax(-1) > 1.2) & (steps == 4)
        steps = torch.where(sure, tick, steps)
        if (steps < 4).all():
            break
    return x, steps


def cached_steps() -> InputSets:
    first = drawn(2, 4)
    return [(first,), (first * 1.01,), (first * 2,), (first * 2.01,)]


@REPORTS.of(
    GITHUB + "huggingface/diffusers/pull/11180", cached_steps, state=attributes("first", "rest")
)
class FirstBlockCache(nn.Module):
    """The other blocks are skipped where the first one's residual hardly moved."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.first = torch.zeros(2, 4)
        self.rest = torch.zeros(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        start = self.blocks[0](x)
        residual = start - x
        changed = (residual - self.first).abs().mean() / (self.first.abs().mean() + 1e-6)
        if changed > 0.1:
            y = start
            for block in self.blocks[1:]:
                y = torch.tanh(block(y))
            self.first = residual.detach()
            self.rest = (y - start).detach()
        else:
            y = start + self.rest
        return y


@REPORTS.of(
    GITHUB + "huggingface/diffusers/pull/12652",
    cached_steps,
    state=attributes("distance", "previous", "residual"),
)
class AccumulatedDistance(nn.Module):
    """A counter of distances decides; it starts anew after a full pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(4, 4)
        self.distance = torch.zeros(())
        self.previous: Tensor | None = None
        self.residual: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        compute = True
        if self.previous is not None and self.residual is not None:
            relative = (x - self.previous).abs().mean() / self.previous.abs().mean()
            self.distance = self.distance + relative
            if self.distance < 0.2:
                compute = False
        self.previous = x
        if compute:
            y = torch.tanh(self.block(x))
            self.residual = y - x
            self.distance = torch.zeros(())
            return y
        return x + self.residual  # type: ignore[operator]


def batches() -> InputSets:
    return [(drawn(8, 4) * 3 + 1,), (drawn(8, 4, seed=2),), (drawn(8, 4, seed=3),)]


@REPORTS.of(GITHUB + "rosinality/glow-pytorch/issues/46", batches)
class ActNorm(nn.Module):
    """Its scale comes from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(4))
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        if self.initialized.item() == 0:
            with torch.no_grad():
                self.loc.data.copy_(-x.mean(0))
                self.scale.data.copy_(1 / (x.std(0) + 1e-6))
            self.initialized.fill_(1)
        return self.scale * (x + self.loc)


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/194504", batches, grad=True)
class CumulativeAverage(nn.Module):
    """Batch norm with ``momentum=None``: a mean over all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)  # type: ignore[no-any-return]


@REPORTS.of(GITHUB + "pytorch/rl/pull/3790", batches)
class VectorNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.count == 0:
            self.mean.copy_(x.mean(0))
        else:
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.count += 1
        return x - self.mean


@REPORTS.of(GITHUB + "NVIDIA/torch-harmonics/issues/209", two_scales, grad=True)
def asserts_a_range(x: Tensor) -> Tensor:
    assert torch.isfinite(x).all()
    assert (x.abs() < 20).all(), "out of range"
    return x.sin()


@REPORTS.of(GITHUB + "jaseci-labs/jac/pull/7926", padded)
def refuses_a_mask(x: Tensor, mask: Tensor) -> Tensor:
    x = torch.relu(x)
    if not mask.all():
        raise ValueError("mask must be all true")
    return torch.sin(x) * 2.0


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/158642", two_scales)
def asks_for_a_gradient_by_value(x: Tensor) -> Tensor:
    y = x.clone().requires_grad_((x.abs().mean() > 5).item())
    return torch.sigmoid(y)


@REPORTS.of(
    "https://thomasjpfan.com/2025/03/pytorch-graphs-three-ways-data-dependent-control-flow",
    lambda: [(torch.tensor([1.0, 2]),), (torch.tensor([-1.0, 2]),)],
    grad=True,
)
def adds_or_takes_ten(x: Tensor) -> Tensor:
    positive = torch.all(x >= 0)
    if positive:
        return x + 10
    else:
        return x - 10


@REPORTS.of(GITHUB + "Dao-AILab/flash-attention/pull/25", padded)
def returns_weights_if_masked(x: Tensor, mask: Tensor) -> Any:
    out = x * mask[:, :, None]
    if (mask == 0).any():
        return out, mask.sum(1)
    return out


@REPORTS.of(GITHUB + "lucidrains/vector-quantize-pytorch/issues/162", batches)
class ChannelScale(nn.Module):
    """A layer scale that is reset where it has become too small."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, 0.001, 1.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        weak = self.scale < 0.01
        if weak.any():
            self.scale[weak] = 1.0
        return x * self.scale
