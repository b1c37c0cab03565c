"""Attention, positions, samplers and audio that test what they compute."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .report import InputSets, Reports, attributes, drawn

REPORTS = Reports()
GITHUB = "https://github.com/"


def padded() -> InputSets:
    none = torch.zeros(2, 4, dtype=torch.bool)
    some = torch.tensor([[False, False, False, True], [False, False, True, True]])
    return [(drawn(2, 4, 3), none), (drawn(2, 4, 3, seed=1), some)]


@REPORTS.of(GITHUB + "facebookresearch/fairseq/pull/4818", padded, grad=True)
class EncoderWithPads(nn.Module):
    """fairseq's encoder: the mask is used where something is padded, and goes on as None else."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: Tensor, padding: Tensor) -> dict[str, Any]:
        has_pads = padding.any()
        if has_pads:
            x = x * (1 - padding.unsqueeze(-1).type_as(x))
        states = []
        for layer in self.layers:
            x = self.attend(layer(x), padding if has_pads else None)
            states.append(x)
        return {"out": x, "states": states, "padding": padding if has_pads else None}

    def attend(self, x: Tensor, padding: Tensor | None) -> Tensor:
        scores = x @ x.transpose(1, 2)
        if padding is not None:
            scores = scores.masked_fill(padding[:, None], float("-inf"))
        return scores.softmax(-1) @ x


@REPORTS.of(GITHUB + "facebookresearch/fairseq", padded, grad=True)
def negatives_that_are_positive(x: Tensor, padding: Tensor) -> Tensor:
    logits = torch.cat((x.sum(-1)[None], x.mul(2).sum(-1)[None]), 0)
    same = padding
    if same.any():
        logits[1][same] = float("-inf")
    return logits.softmax(0)


def lengths() -> InputSets:
    return [
        (drawn(3, 4), torch.tensor([4, 4, 4])),
        (drawn(3, 4, seed=1), torch.tensor([4, 2, 3])),
        (drawn(3, 4, seed=1), torch.tensor([4, 0, 3])),
        (drawn(3, 4, seed=1), torch.tensor([3, 2, 3])),
    ]


@REPORTS.of(GITHUB + "speechbrain/speechbrain", lengths, grad=True)
def mean_pools_by_length(x: Tensor, length: Tensor) -> Tensor:
    if length.min() <= 0:
        raise RuntimeError("lengths must be positive")
    if (length == length[0]).all():
        return x.mean(1)
    keep = torch.arange(4)[None] < length[:, None]
    return (x * keep).sum(1) / length


@REPORTS.of(GITHUB + "ecmwf/WeatherGenerator/issues/1531", lengths)
def checks_the_longest(x: Tensor, length: Tensor) -> Tensor:
    longest = int(length.max())
    if longest != x.shape[1]:
        raise ValueError(f"expected {x.shape[1]} frames, lengths have {longest}")
    return x.cumsum(1)


def cache_positions() -> InputSets:
    first = torch.arange(3)
    return [
        (drawn(2, 4, 3), first),
        (drawn(2, 4, 3, seed=2), first + 3),
        (drawn(2, 4, 3, seed=3), first),
    ]


@REPORTS.of(GITHUB + "huggingface/transformers/pull/31247", cache_positions)
class ConvState(nn.Module):
    """Mamba: the first call fills the state, later ones shift it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, groups=4, padding=2)
        self.register_buffer("state", torch.zeros(2, 4, 3))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        if position[0] > 0:
            state = self.state.roll(-1, -1)
            state[:, :, -1] = x[:, :, 0]
            self.state.copy_(state)
            out = (self.state * self.conv.weight[:, 0]).sum(-1) + self.conv.bias
            out = F.silu(out).unsqueeze(-1)
        else:
            self.state.copy_(F.pad(x, (0, 0)))
            out = F.silu(self.conv(x)[..., 2:3])
        return out * 2


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/163791",
    cache_positions,
    state=attributes("longest", "inv_freq"),
)
class DynamicNTK(nn.Module):
    """The frequencies grow with the sequence, and go back when a short one comes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.tensor([1.0, 0.1]))
        self.original = self.inv_freq.clone()
        self.longest: Any = torch.tensor(4)

    @torch.no_grad()
    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        length = torch.max(position) + 1
        if length > self.longest:
            self.inv_freq = 1.0 / (10000.0 * length) ** torch.tensor([0.0, 0.5])
            self.longest = length
        if length < 4 and self.longest > 4:
            self.inv_freq = self.original
            self.longest = torch.tensor(4)
        angle = position[:, None] * self.inv_freq
        return torch.cat((angle.cos(), angle.sin()), -1)


@REPORTS.of(GITHUB + "huggingface/transformers/pull/37206", cache_positions)
def is_packed(x: Tensor, position: Tensor) -> Tensor:
    packed = position.shape[0] == 3 and not (torch.diff(position, dim=-1) > 0).all()
    causal = True if not packed and position[0] == 0 else False
    scores = x.transpose(1, 2) @ x
    if causal:
        scores = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -1e9)
    return scores.softmax(-1)


def attention_masks() -> InputSets:
    plain = torch.zeros(2, 4)
    one = plain.clone()
    one[0, 1] = 1
    out = plain.clone()
    out[1, 3] = -1
    return [(drawn(2, 4, 3), plain), (drawn(2, 4, 3), one), (drawn(2, 4, 3), out)]


@REPORTS.of(GITHUB + "huggingface/transformers", attention_masks)
class GlobalAttention(nn.Module):
    """Longformer: one flag of the batch, asked in each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Linear(3, 3)
        self.all = nn.Linear(3, 3)

    def layer(self, x: Tensor, mask: Tensor, is_global: bool) -> Tensor:
        y = self.local(x)
        if is_global:
            y = torch.where((mask > 0)[..., None], self.all(x.mean(1, keepdim=True)), y)
        return y

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, bool]:
        is_global = (mask > 0).flatten().any().item()
        for _ in range(2):
            x = self.layer(x, mask, is_global)
        return x, is_global


@REPORTS.of(GITHUB + "lucidrains/x-transformers/pull/355", attention_masks, grad=True)
def lets_empty_rows_attend(x: Tensor, mask: Tensor) -> Tensor:
    scores = x @ x.transpose(1, 2)
    hidden = (mask <= 0)[:, None].expand(-1, 4, -1).clone()
    empty = hidden.all(-1)
    if empty.any():
        hidden[empty] = False
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ x


def shapes() -> InputSets:
    return [
        (drawn(1, 8, 2), torch.tensor([[2, 2], [2, 2]])),
        (drawn(1, 8, 2), torch.tensor([[2, 3], [2, 2]])),
    ]


@REPORTS.of(GITHUB + "fundamentalvision/Deformable-DETR", shapes)
def checks_spatial_shapes(x: Tensor, sizes: Tensor) -> Tensor:
    if (sizes[:, 0] * sizes[:, 1]).sum() != x.shape[1]:
        raise ValueError("Make sure to align the spatial shapes with the sequence length")
    return F.silu(x)


def guided() -> InputSets:
    return [
        (drawn(4), drawn(4, seed=1), torch.tensor(time)) for time in (0.05, 0.5, 0.95, 0.0, 1.0)
    ]


@REPORTS.of(GITHUB + "crowsonkb/k-diffusion", guided, grad=True)
def guides_in_an_interval(cond: Tensor, uncond: Tensor, t: Tensor) -> Tensor:
    low, high = 0.1, 0.9
    if low <= t <= high:
        return uncond + 4.0 * (cond - uncond)
    return cond


@REPORTS.of(GITHUB + "crowsonkb/k-diffusion", guided)
def churned_euler(x: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    gamma = min(0.5 / 4, 2**0.5 - 1) if 0.1 <= sigma <= 0.9 else 0.0
    sigma_hat = sigma * (gamma + 1)
    if gamma > 0:
        x = x + noise * (sigma_hat**2 - sigma**2) ** 0.5
    derivative = (x - x / (1 + sigma_hat)) / (sigma_hat + 1e-3)
    return x - derivative * sigma_hat


@REPORTS.of(GITHUB + "huggingface/diffusers/pull/9384", guided)
class DrawsNoiseUnlessLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.denoise = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        mean = self.denoise(x) * t + y
        if t > 0:
            noise = torch.randn_like(x)
            mean = mean + t.sqrt() * noise
        return mean


@REPORTS.of(
    GITHUB + "huggingface/diffusers/issues/5921",
    lambda: [(drawn(4), torch.tensor(t)) for t in (7, 3, 0)],
)
class DDIM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alphas", torch.linspace(0.99, 0.1, 8))
        self.final = torch.tensor(1.0)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        previous = t - 4
        alpha = self.alphas[t]
        alpha_previous = self.alphas[previous] if previous >= 0 else self.final
        clean = (x - (1 - alpha).sqrt() * x.tanh()) / alpha.sqrt()
        return alpha_previous.sqrt() * clean + (1 - alpha_previous).sqrt() * x.tanh()


@REPORTS.of(
    GITHUB + "openai/whisper", lambda: [(drawn(2, 3), torch.tensor(v)) for v in (0.0, 0.7, 1.0)]
)
def temperature_zero_is_greedy(logits: Tensor, temperature: Tensor) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]


@REPORTS.of(
    GITHUB + "huggingface/transformers",
    lambda: [(drawn(2, 3),), (drawn(2, 3) * float("nan"),), (drawn(2, 3) * float("inf"),)],
)
def falls_back_to_uniform(logits: Tensor) -> Tensor:
    probs = logits.softmax(-1)
    if torch.isnan(probs).any() or torch.isinf(probs).any() or (probs < 0).any():
        probs = torch.full_like(probs, 1 / 3)
    return probs.cumsum(-1)


def waves() -> InputSets:
    return [(drawn(1, 16) * scale,) for scale in (0.1, 3.0, 0.0, 1e-6)]


@REPORTS.of(GITHUB + "pytorch/audio", waves, grad=True)
def normalizes_a_peak(wave: Tensor) -> Tensor:
    peak = wave.abs().max()
    if peak > 0:
        wave = wave / peak
    return wave * 0.9


@REPORTS.of(GITHUB + "facebookresearch/demucs", waves)
def rescales_what_clips(wave: Tensor) -> tuple[Tensor, str]:
    mode = "none"
    largest = wave.abs().max()
    if largest > 1.0:
        warnings.warn(f"clipping, largest sample {largest.item():.3f}")
        wave = wave / (1.01 * largest)
        mode = "rescale"
    return wave.clamp(-1, 1), mode


@REPORTS.of(GITHUB + "pytorch/audio", waves)
def leaves_silence(wave: Tensor) -> Tensor:
    rms = wave.pow(2).mean().sqrt().item()
    if rms < 1e-4:
        return wave
    gain = 10 ** (-20 / 20) / rms
    return torch.tanh(wave * gain)


@REPORTS.of(GITHUB + "pytorch/audio", waves)
def refuses_loud_waves(wave: Tensor) -> Tensor:
    if torch.min(wave) < -1 or torch.max(wave) > 1:
        raise ValueError(f"waveform must be in [-1, 1], got {wave.min()} to {wave.max()}")
    return (wave * 32767).round().to(torch.int16)


def decoded() -> InputSets:
    return [
        (torch.tensor(a), torch.tensor(b), torch.tensor(c))
        for a, b, c in ((2.0, -0.5, 0.1), (2.6, -0.5, 0.1), (2.0, -2.0, 0.1), (2.6, -2.0, 0.9))
    ]


@REPORTS.of(GITHUB + "openai/whisper", decoded)
def needs_fallback(ratio: Tensor, logprob: Tensor, silence: Tensor) -> tuple[Tensor, bool]:
    fallback = False
    if ratio > 2.4:
        fallback = True
    if logprob < -1.0:
        fallback = True
    if silence > 0.6:
        fallback = False
    return ratio * logprob, fallback


@REPORTS.of(GITHUB + "openai/whisper", decoded)
def skips_a_silent_segment(ratio: Tensor, logprob: Tensor, silence: Tensor) -> Tensor | None:
    skip = silence.item() > 0.6
    if logprob.item() > -1.0:
        skip = False
    if skip:
        return None
    return ratio + logprob


def images() -> InputSets:
    return [(drawn(1, 2, 4, 4, seed=s),) for s in range(5)]


@REPORTS.of(GITHUB + "pytorch/vision/issues/414", images)
class RandomFlip(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.rand(1) < 0.5:
            return x.flip(-1)
        return x


@REPORTS.of(GITHUB + "kornia/kornia/pull/3793", images)
class RandomJitter(nn.Module):
    """Two draws decide, one of them only where the first one says so."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.rand(1).item() < 0.7:
            x = x * 1.1
            if torch.rand(1).item() < 0.5:
                x = x + torch.randn(1)
        return x.clamp(-1, 1)


@REPORTS.of(GITHUB + "Lightning-AI/torchmetrics", images)
def sigmoid_if_logits(x: Tensor) -> Tensor:
    if not torch.all((x >= 0) * (x <= 1)):
        x = x.sigmoid()
    return (x > 0.5).long()


@REPORTS.of(
    GITHUB + "Lightning-AI/torchmetrics", lambda: [(drawn(3),), (drawn(3).sigmoid(),)], grad=True
)
def sigmoid_if_logits_of_a_loss(x: Tensor) -> Tensor:
    if x.min() < 0 or x.max() > 1:
        x = x.sigmoid()
    return -(x.log() + (1 - x).log()).mean()


@REPORTS.of(
    GITHUB + "pytorch/vision",
    lambda: [(drawn(1, 2, 4), torch.ones(2)), (drawn(1, 2, 4), torch.tensor([1.0, 0.0]))],
)
def refuses_a_zero_std(x: Tensor, std: Tensor) -> Tensor:
    if (std == 0).any():
        raise ValueError(f"std evaluated to zero after conversion to {x.dtype}")
    return x.sub(x.mean(-1, keepdim=True)).div_(std[:, None])


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/145970",
    lambda: [(torch.eye(3),), (torch.eye(3) * 2,), (torch.eye(3) + 1e-9,)],
    grad=True,
)
def skips_an_identity(matrix: Tensor) -> Tensor:
    if torch.allclose(matrix, torch.eye(3)):
        return torch.zeros(3)
    return matrix.sum(0)


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/145970",
    lambda: [(drawn(3), drawn(3)), (drawn(3), drawn(3, seed=1))],
)
def same_tensors_or_not(a: Tensor, b: Tensor) -> Tensor:
    if torch.equal(a, b):
        return a * 2
    return a + b


@REPORTS.of(
    GITHUB + "pyg-team/pytorch_geometric",
    lambda: [
        (drawn(4), torch.tensor([[0, 1], [1, 3]])),
        (drawn(4), torch.tensor([[0, 1], [1, 4]])),
        (drawn(4), torch.tensor([[0, -1], [1, 2]])),
    ],
)
def checks_an_edge_index(x: Tensor, edges: Tensor) -> Tensor:
    if edges.min() < 0:
        raise IndexError(f"Found negative indices in 'edge_index' (got {edges.min().item()})")
    if edges.max() >= x.shape[0]:
        raise IndexError("Found indices in 'edge_index' that are too large")
    return torch.zeros(4).index_add_(0, edges[1], x[edges[0]])


@REPORTS.of(
    GITHUB + "huggingface/transformers",
    lambda: [(torch.tensor([[5, 1, 2, 2]]),), (torch.tensor([[5, 2, 1, 2], [2, 2, 2, 2]]),)],
)
def equal_counts_of_eos(ids: Tensor) -> Tensor:
    eos = ids.eq(2)
    if len(torch.unique_consecutive(eos.sum(1))) > 1:
        raise ValueError("All examples must have the same number of <eos> tokens.")
    return ids * eos


@REPORTS.of(
    GITHUB + "yenchenlin/nerf-pytorch",
    lambda: [
        ({"rgb": drawn(3), "depth": drawn(2)},),
        ({"rgb": drawn(3) / 0, "depth": drawn(2)},),
        ({"rgb": drawn(3), "depth": drawn(2) * float("nan")},),
    ],
)
def reports_bad_renders(out: dict[str, Tensor]) -> dict[str, Tensor]:
    result = {name: value * 2 for name, value in out.items()}
    for name in result:
        if torch.isnan(result[name]).any() or torch.isinf(result[name]).any():
            print(f"! [Numerical Error] {name} contains nan or inf.")
    return result


@REPORTS.of(
    GITHUB + "pytorch/vision/pull/1026",
    lambda: [
        (torch.tensor([[0.0, 0, 2, 2], [1, 1, 3, 3]]),),
        (torch.tensor([[0.0, 0, 2, 2], [1, 1, 1, 3]]),),
    ],
)
def refuses_degenerate_boxes(boxes: Tensor) -> Tensor:
    degenerate = boxes[:, 2:] <= boxes[:, :2]
    if degenerate.any():
        first = torch.where(degenerate.any(dim=1))[0][0]
        found = boxes[first].tolist()
        torch._assert(False, f"boxes need positive height and width, found {found}")
    return boxes[:, 2:] - boxes[:, :2]


@REPORTS.of(GITHUB + "facebookresearch/detectron2", lambda: [(drawn(3, 2),), (drawn(3, 2) / 0,)])
class Boxes(nn.Module):
    def forward(self, tensor: Tensor) -> Tensor:
        assert torch.isfinite(tensor).all(), "Box tensor contains infinite or NaN!"
        x1 = tensor[:, 0].clamp(min=0, max=1)
        y1 = tensor[:, 1].clamp(min=0, max=2)
        return torch.stack((x1, y1), -1)
