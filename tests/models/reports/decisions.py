"""Decoding, experts, environments and detections that decide by what they compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .report import InputSets, Reports, attributes, drawn

REPORTS = Reports()
GITHUB = "https://github.com/"


def prompts() -> InputSets:
    return [(torch.tensor([[1, 2]]),), (torch.tensor([[3, 0]]),), (torch.tensor([[2, 2]]),)]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.head = nn.Linear(8, 5)

    def next(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).mean(1)).argmax(-1)  # type: ignore[no-any-return]


@REPORTS.of(GITHUB + "joeynmt/joeynmt/pull/78", prompts)
class Greedy(Decoder):
    def forward(self, tokens: Tensor) -> Tensor:
        finished = torch.zeros(tokens.shape[0], dtype=torch.bool)
        out = []
        for _ in range(4):
            token = self.next(tokens)
            out.append(token)
            tokens = torch.cat((tokens[:, 1:], token[:, None]), 1)
            finished = finished | (token == 0)
            if finished.all():
                break
        return torch.stack(out, 1)


@REPORTS.of(GITHUB + "google/gemma_pytorch/pull/57", prompts)
class WritesIntoABuffer(Decoder):
    def forward(self, tokens: Tensor) -> Tensor:
        out = torch.full((1, 6), -1)
        out[:, :2] = tokens
        for position in range(2, 6):
            token = self.next(out[:, position - 2 : position].clamp(min=0))
            out[:, position] = token
            if (token == 4).all():
                break
        return out


@REPORTS.of(GITHUB + "huggingface/transformers/pull/29459", prompts)
class StoppingCriteria(Decoder):
    def forward(self, tokens: Tensor) -> Tensor:
        unfinished = torch.ones(1, dtype=torch.long)
        done = False
        steps = 0
        while not done and steps < 3:
            token = self.next(tokens)
            token = token * unfinished
            tokens = torch.cat((tokens[:, 1:], token[:, None]), 1)
            unfinished = unfinished & (token != 0)
            done = unfinished.max() == 0
            steps += 1
        return tokens


@REPORTS.of(GITHUB + "joeynmt/joeynmt/issues/45", prompts)
class Beams(Decoder):
    """Keeps the better of two candidates and stops when the score cannot win any more."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        best, score = tokens, torch.tensor(-10.0)
        for width in range(1, 3):
            logits = self.head(self.embed(tokens[:, :width]).mean(1)).log_softmax(-1)
            candidate = logits.max()
            if candidate > score:
                best, score = logits.topk(2).indices, candidate
        return best, score


def routed() -> InputSets:
    return [
        (drawn(4, 3), torch.tensor([0, 1, 0, 1])),
        (drawn(4, 3), torch.tensor([0, 0, 0, 0])),
        (drawn(4, 3), torch.tensor([1, 1, 1, 0])),
    ]


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))


@REPORTS.of(GITHUB + "jingyaogong/minimind/issues/835", routed, grad=True)
class MaskedExperts(Experts):
    def forward(self, x: Tensor, route: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mask = route == index
            if mask.any():
                out = out + expert(x) * mask[:, None]
        return out


@REPORTS.of(GITHUB + "huggingface/transformers/pull/39012", routed)
class IndexedExperts(Experts):
    def forward(self, x: Tensor, route: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            (tokens,) = torch.where(route == index)
            if tokens.numel() > 0:
                out.index_add_(0, tokens, expert(x[tokens]))
        return out


@REPORTS.of(GITHUB + "huggingface/transformers/pull/38133", routed)
class HitExperts(Experts):
    def forward(self, x: Tensor, route: Tensor) -> Tensor:
        hit = torch.bincount(route, minlength=2) > 0
        out = torch.zeros_like(x)
        for index in hit.nonzero().flatten().tolist():
            out = out + self.experts[index](x) * (route == index)[:, None]
        return out


@REPORTS.of(GITHUB + "Lightning-AI/litgpt/pull/823", routed)
def skips_an_empty_expert(x: Tensor, route: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for index in range(2):
        mask = route == index
        if not mask.any():
            continue
        out[mask] = x[mask] * (index + 2.0)
    return out


@REPORTS.of(GITHUB + "PrimeIntellect-ai/prime-rl/issues/996", routed)
def splits_by_counts(x: Tensor, route: Tensor) -> Tensor:
    order = route.argsort(stable=True)
    counts = torch.stack([(route == index).sum() for index in range(2)]).tolist()
    parts = torch.split(x[order], counts)
    return torch.cat([part * (index + 1) for index, part in enumerate(parts)])


def transitions() -> InputSets:
    return [
        (torch.tensor([0.1, 0.2]), torch.tensor(0.5)),
        (torch.tensor([0.9, 0.8]), torch.tensor(0.9)),
        (torch.tensor([0.0, 0.1]), torch.tensor(-0.5)),
    ]


@REPORTS.of(GITHUB + "pytorch/rl/pull/1448", transitions)
class Environment(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = state + 0.5 * action
        self.steps += 1
        done = (state.abs() > 1).any()
        reward = torch.ones(())
        if done:
            reward = torch.zeros(())
            state = torch.zeros(2)
            self.steps.zero_()
        return state, reward, done


@REPORTS.of(GITHUB + "pytorch/rl/pull/1936", transitions)
def maybe_resets(state: Tensor, action: Tensor) -> dict[str, Tensor]:
    out = {"observation": state + action, "done": (state + action).sum() > 1}
    if out["done"]:
        out["observation"] = torch.zeros(2)
    return out


@REPORTS.of(GITHUB + "pytorch/rl/pull/3566", transitions)
def rolls_out(state: Tensor, action: Tensor) -> tuple[Tensor, int]:
    rewards = []
    for _ in range(3):
        state = torch.tanh(state + action)
        rewards.append(state.sum())
        if state.sum() > 1.5:
            break
    return torch.stack(rewards), len(rewards)


@REPORTS.of(GITHUB + "SforAiDl/genrl/issues/292", transitions, state=attributes("episodes"))
class CountsEpisodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.episodes = 0
        self.total = torch.zeros(())

    def forward(self, state: Tensor, action: Tensor) -> dict[str, Any]:
        self.total = self.total + action
        info: dict[str, Any] = {}
        if state.sum() > 1:
            self.episodes += 1
            info["return"] = self.total
            self.total = torch.zeros(())
        return info


@REPORTS.of(GITHUB + "pytorch/tutorials/pull/2653", transitions, grad=True)
def clips_a_policy_ratio(state: Tensor, action: Tensor) -> Tensor:
    ratio = torch.exp(state - action)
    divergence = (state - action).mean()
    if divergence > 0.2:
        return torch.clamp(ratio, 0.8, 1.2).mean()
    return ratio.mean()


def boxes() -> InputSets:
    corners = torch.tensor([[0.0, 0, 2, 2], [0, 0, 1.9, 2], [3, 3, 4, 4]])
    return [
        (corners, torch.tensor([0.9, 0.8, 0.7])),
        (corners + torch.tensor([[0.0], [5.0], [0.0]]), torch.tensor([0.2, 0.1, 0.05])),
    ]


@REPORTS.of(GITHUB + "open-mmlab/mmdetection/issues/9159", boxes)
def detections_or_none(corners: Tensor, scores: Tensor) -> Tensor | None:
    if (scores > 0.5).sum() == 0:
        return None
    return corners * scores[:, None]


@REPORTS.of(GITHUB + "ROCm/AMDMIGraphX/issues/4679", boxes)
def suppresses(corners: Tensor, scores: Tensor) -> Tensor:
    area = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    keep = torch.ones(3, dtype=torch.bool)
    for first in range(3):
        for second in range(first + 1, 3):
            low = torch.maximum(corners[first, :2], corners[second, :2])
            high = torch.minimum(corners[first, 2:], corners[second, 2:])
            overlap = (high - low).clamp(min=0).prod()
            union = area[first] + area[second] - overlap
            if keep[first] and overlap / union > 0.5:
                keep[second] = False
    return keep


@REPORTS.of(GITHUB + "Hyuto/yolov5-onnxruntime-web/pull/1", boxes)
def scales_boxes_if_normalized(corners: Tensor, scores: Tensor) -> dict[str, Tensor]:
    if corners.max() <= 4:
        corners = corners * 100
    return {"boxes": corners, "best": scores.argmax()}


@REPORTS.of(GITHUB + "pytorch/vision/issues/4298", boxes, grad=True)
def loss_by_matches(corners: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    matched = scores > 0.5
    count = matched.sum()
    if count > 0:
        regression = (corners.sum(1) * matched).sum() / count
    else:
        regression = corners.sum() * 0.0
    return regression, scores.log().mean()


def streams() -> InputSets:
    return [(torch.tensor([value, 0.5]),) for value in (0.1, 2.0, 0.2, 5.0)]


@REPORTS.of(GITHUB + "Project-MONAI/monai-physio/pull/137", streams)
class Kalman(nn.Module):
    """A filter that ignores measurements which are too far away."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("variance", torch.ones(2))

    def forward(self, z: Tensor) -> Tensor:
        variance = self.variance + 0.1
        innovation = z - self.mean
        distance = (innovation**2 / (variance + 0.5)).sum()
        if distance < 2.0:
            gain = variance / (variance + 0.5)
            self.mean.copy_(self.mean + gain * innovation)
            variance = (1 - gain) * variance
        self.variance.copy_(variance)
        return self.mean.clone()


@REPORTS.of(GITHUB + "londonaicentre/FLIP/pull/766", streams, state=attributes("best", "where"))
class RunningBest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.best = torch.zeros(())
        self.where: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        value = x.sum()
        if value > self.best:
            self.best = value
            self.where = x.clone()
        return self.best * 2
