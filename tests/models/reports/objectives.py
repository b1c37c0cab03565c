"""Losses, metrics and detections."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .report import InputSets, Reports, drawn

REPORTS = Reports()
GITHUB = "https://github.com/"
log = logging.getLogger("outside")


def assigned() -> InputSets:
    return [
        (drawn(2, 5), torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 1]])),
        (drawn(2, 5, seed=1), torch.zeros(2, 5, dtype=torch.long)),
        (drawn(2, 5, seed=2), torch.ones(2, 5, dtype=torch.long)),
    ]


@REPORTS.of(GITHUB + "ultralytics/ultralytics/pull/25097", assigned, grad=True)
class BoxLoss(nn.Module):
    """YOLOv8: parts of a loss vector are set where something is assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 5)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        loss = torch.zeros(3)
        scores = self.head(x)
        total = max(target.float().sum(), 1)
        loss[1] = (
            F.binary_cross_entropy_with_logits(scores, target.float(), reduction="sum") / total
        )
        foreground = target > 0
        if foreground.sum():
            weight = target.float() * foreground
            loss[0] = ((x - 1).abs() * weight).sum() / total
            loss[2] = ((x + 1).abs() * weight).sum() / total
        loss[0] *= 7.5
        loss[1] *= 0.5
        return loss.sum() * x.shape[0], loss.detach()


@REPORTS.of(
    GITHUB + "ultralytics/ultralytics",
    lambda: [
        (torch.tensor([[[1, 0, 1], [0, 0, 1]]]), drawn(1, 2, 3)),
        (torch.tensor([[[1, 0, 0], [0, 0, 1]]]), drawn(1, 2, 3)),
    ],
)
def selects_highest_overlaps(positive: Tensor, overlaps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    foreground = positive.sum(-2)
    if foreground.max() > 1:
        several = (foreground.unsqueeze(1) > 1).expand(-1, 2, -1)
        best = torch.zeros(positive.shape, dtype=positive.dtype)
        best.scatter_(1, overlaps.argmax(1).unsqueeze(1), 1)
        positive = torch.where(several, best, positive)
        foreground = positive.sum(-2)
    return positive.argmax(-2), foreground, positive


@REPORTS.of(GITHUB + "pytorch/vision", assigned, grad=True)
def normalizes_by_foreground(x: Tensor, target: Tensor) -> dict[str, Tensor]:
    count = (target > 0).sum()
    classes = F.binary_cross_entropy_with_logits(x, target.float(), reduction="sum")
    return {"cls": classes / max(1, count), "reg": (x.abs() * target).sum() / max(count, 1)}


@REPORTS.of(GITHUB + "Project-MONAI/MONAI", assigned, grad=True)
def dice_over_present_classes(x: Tensor, target: Tensor) -> Tensor:
    losses = []
    probs = x.sigmoid()
    for row in range(2):
        wanted = (target[row] == 1).float()
        if wanted.sum() == 0:
            continue
        overlap = (probs[row] * wanted).sum()
        losses.append(1 - 2 * overlap / (probs[row].sum() + wanted.sum()))
    if len(losses) == 0:
        return x.sum() * 0.0
    return torch.stack(losses).mean()


@REPORTS.of(GITHUB + "Project-MONAI/MONAI", assigned, grad=True)
def skips_absent_classes_by_count(x: Tensor, target: Tensor) -> Tensor:
    total, count = 0.0, 0
    for row in range(2):
        fg = (target[row] == 1).float()
        if fg.sum() == 0:
            continue
        total = total + ((x[row] - fg) ** 2).sum()
        count += 1
    return total / max(count, 1)


@REPORTS.of(GITHUB + "open-mmlab/mmdetection", assigned, grad=True)
class GradientHarmonizing(nn.Module):
    """GHM: bins that hold something get a weight, their number divides."""

    def __init__(self) -> None:
        super().__init__()
        self.edges = [0.0, 0.3, 0.6, 1.01]

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        g = (x.sigmoid().detach() - target.float()).abs()
        weights = torch.zeros_like(x)
        total = max(float(x.numel()), 1.0)
        n = 0
        for low, high in zip(self.edges, self.edges[1:]):
            inside = (g >= low) & (g < high)
            count = inside.sum().item()
            if count > 0:
                weights[inside] = total / count
                n += 1
        if n > 0:
            weights = weights / n
        return (
            F.binary_cross_entropy_with_logits(x, target.float(), weights, reduction="sum") / total
        )


@REPORTS.of(GITHUB + "open-mmlab/mmdetection", assigned, grad=True)
class GradientHarmonizingWithMomentum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("acc", torch.zeros(3))
        self.edges = [0.0, 0.3, 0.6, 1.01]

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        g = (x.sigmoid().detach() - target.float()).abs()
        weights = torch.zeros_like(x)
        n = 0
        for i, (low, high) in enumerate(zip(self.edges, self.edges[1:])):
            inside = (g >= low) & (g < high)
            count = inside.sum().item()
            if count > 0:
                self.acc[i] = 0.75 * self.acc[i] + 0.25 * count
                weights[inside] = 10.0 / self.acc[i]
                n += 1
        if n > 0:
            weights = weights / n
        return (x.square() * weights).sum()


@REPORTS.of(GITHUB + "open-mmlab/mmdetection", assigned, grad=True)
def zero_that_keeps_the_graph(x: Tensor, target: Tensor) -> dict[str, Tensor]:
    num_pos = (target > 0).sum()
    if num_pos == 0:
        return {"loss_bbox": x.sum() * 0, "loss_cls": x.sigmoid().mean()}
    return {"loss_bbox": (x * target).abs().sum() / num_pos, "loss_cls": x.sigmoid().mean()}


@REPORTS.of(GITHUB + "open-mmlab/mmdetection", assigned, grad=True)
class KeepsParametersUsed(nn.Module):
    """DDP: a zero times the parameters where nothing is found."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 1)
        self.b = nn.Linear(5, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss = self.a(x).mean()
        if target.any():
            loss = loss + (self.b(x) * target.float().mean()).sum()
        else:
            loss = loss + 0.0 * sum(p.sum() for p in self.b.parameters())
        return loss


def scored() -> InputSets:
    return [
        (drawn(4, 3), drawn(4, 3, seed=1)),
        (drawn(4, 3) * 4, drawn(4, 3, seed=1)),
        (drawn(4, 3) * 20, drawn(4, 3, seed=1)),
    ]


@REPORTS.of(GITHUB + "kekmodel/FixMatch-pytorch", scored, grad=True)
def fixmatch(weak: Tensor, strong: Tensor) -> Tensor:
    probs, labels = weak.detach().softmax(-1).max(-1)
    mask = probs.ge(0.9).float()
    loss = F.cross_entropy(strong, labels, reduction="none") * mask
    if mask.sum() > 0:
        return loss.sum() / mask.sum()
    return torch.tensor(0.0)


@REPORTS.of(GITHUB + "TorchSSL/TorchSSL", scored)
class FlexMatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("selected", torch.full((4,), -1))
        self.register_buffer("acc", torch.zeros(3))

    @torch.no_grad()
    def forward(self, weak: Tensor, strong: Tensor) -> Tensor:
        probs, labels = weak.softmax(-1).max(-1)
        select = probs.ge(0.9)
        if select.any():
            self.selected[select] = labels[select]
        counts = torch.zeros(3).index_add_(
            0, self.selected.clamp(min=0), (self.selected >= 0).float()
        )
        if counts.max() > 0:
            self.acc.copy_(counts / counts.max())
        return probs.ge(0.9 * self.acc[labels]).float() * strong.mean(-1)


@REPORTS.of(GITHUB + "KevinMusgrave/pytorch-metric-learning", scored, grad=True)
def triplet_or_zero(anchors: Tensor, others: Tensor) -> Tensor:
    distance = torch.cdist(anchors, others)
    violation = distance.diag()[:, None] - distance + 0.2
    hard = (violation > 0) & ~torch.eye(4, dtype=torch.bool)
    num_hard = hard.sum()
    if num_hard == 0:
        return torch.sum(anchors * 0)
    return (violation * hard).sum() / num_hard


@REPORTS.of(GITHUB + "HuangYG123/CurricularFace", scored, grad=True)
class Curricular(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("t", torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        cos = F.cosine_similarity(x, y).clamp(-1, 1)
        with torch.no_grad():
            self.t = cos.mean() * 0.01 + (1 - 0.01) * self.t
        hard = cos > 0.3
        if hard.any():
            cos = torch.where(hard, cos * (self.t + cos), cos)
        return cos.sum()


@REPORTS.of(GITHUB + "WeiChengTseng/Pytorch-PCGrad", scored, grad=True)
def pcgrad(first: Tensor, second: Tensor) -> Tensor:
    grads = [first.flatten(), second.flatten()]
    projected = []
    for i in range(2):
        g = grads[i].clone()
        for j in range(2):
            if i != j:
                dot = torch.dot(g, grads[j])
                if dot < 0:
                    g -= dot * grads[j] / grads[j].norm() ** 2
        projected.append(g)
    return torch.stack(projected).sum(0)


@REPORTS.of(GITHUB + "ContinualAI/avalanche", scored)
def averaged_gem(grad: Tensor, reference: Tensor) -> Tensor:
    g, r = grad.flatten(), reference.flatten()
    product = torch.dot(g, r)
    if product < 0:
        g.copy_(g - (product / torch.dot(r, r)) * r)
    return grad * 1.0


def pairs() -> InputSets:
    return [
        (drawn(5), drawn(5, seed=1)),
        (torch.ones(5), drawn(5, seed=1)),
        (drawn(5), torch.ones(5) * 2),
    ]


@REPORTS.of(GITHUB + "Lightning-AI/torchmetrics", pairs, grad=True)
def pearson(x: Tensor, y: Tensor) -> Tensor:
    dx, dy = x - x.mean(), y - y.mean()
    sx, sy = dx.pow(2).mean().sqrt(), dy.pow(2).mean().sqrt()
    if sx == 0 or sy == 0:
        return torch.tensor(0.0)
    return (dx * dy).mean() / (sx * sy)


@REPORTS.of(GITHUB + "hill-a/stable-baselines/pull/723", pairs, grad=True)
def standardizes_or_centers(x: Tensor, y: Tensor) -> Tensor:
    std = x.std()
    if std < 1e-5:
        return x - x.mean()
    return (x - x.mean()) / std


@REPORTS.of(GITHUB + "Lightning-AI/torchmetrics", pairs)
def warns_of_low_variance(x: Tensor, y: Tensor) -> Tensor:
    if (x.std() < 1e-6).any() or (y.std() < 1e-6).any():
        warnings.warn("The variance of predictions or target is close to zero.", UserWarning)
    return torch.dot(x, y)


@REPORTS.of(GITHUB + "meta-pytorch/botorch", pairs)
def checks_standardized(x: Tensor, y: Tensor) -> Tensor:
    mean, std = y.mean().abs(), y.std()
    if mean > 0.5 or (std - 1).abs() > 0.5:
        msg = f"Data is not standardized (std = {std}, mean = {mean})."
        warnings.warn(msg, RuntimeWarning)
    return x * y


@REPORTS.of(
    GITHUB + "Lightning-AI/torchmetrics",
    lambda: [(torch.tensor(v),) for v in ([0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1])],
)
def auroc(target: Tensor) -> Tensor:
    pos, neg = (target == 1).sum(), (target == 0).sum()
    if (pos == 0).any() or (neg == 0).any():
        log.warning("No positive or no negative samples, returning 0")
        return torch.zeros(())
    ranks = torch.arange(4.0).flip(0)
    return ((ranks * target).sum() - pos * (pos + 1) / 2) / (pos * neg)


@REPORTS.of(
    GITHUB + "Lightning-AI/torchmetrics",
    lambda: [(drawn(4), torch.tensor(v)) for v in ([0, 1, 1, 0], [0, 0, 0, 0])],
)
def average_precision(scores: Tensor, target: Tensor) -> Tensor:
    if not target.sum():
        return torch.tensor(0.0)
    ordered = target[scores.argsort(descending=True)]
    ranks = torch.arange(1, 5)
    return ((ordered.cumsum(0) / ranks) * ordered).sum() / target.sum()


@dataclass
class Result:
    loss: Tensor
    aux: Tensor | None = None
    skipped: bool = False


@REPORTS.of(GITHUB + "huggingface/transformers", scored, grad=True, state=None)
def result_in_a_dataclass(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None, bool]:
    result = Result(loss=(x - y).pow(2).mean())
    if x.abs().max() > 5:
        result.aux = x.abs().mean()
        result.skipped = True
    if result.aux is not None:
        result.loss = result.loss + 0.1 * result.aux
    return result.loss, result.aux, result.skipped


@REPORTS.of(GITHUB + "huggingface/trl/pull/6842", scored, grad=True)
def zero_or_tensor(x: Tensor, y: Tensor) -> Any:
    penalty = 0
    over = x.abs().max() - 5
    if over > 0:
        penalty = penalty + over * 0.1
    return y.sum() + penalty


@REPORTS.of(GITHUB + "open-edge-platform/physical-ai-studio/pull/877", scored, grad=True)
def logs_parts_of_a_loss(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Any]]:
    logs: dict[str, Any] = {"n": 4}
    loss = (x - y).pow(2).mean()
    if loss > 10:
        loss = loss.clamp(max=10.0)
        logs["clamped"] = True
    logs["loss"] = loss.detach()
    return loss, logs


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/46849", scored)
def any_of_a_list(x: Tensor, y: Tensor) -> Tensor:
    if any((one.abs() > 5).any() for one in (x, y)):
        return x * 0
    if all(torch.isfinite(one).all() for one in [x, y]):
        return x + y
    return y


@REPORTS.of(GITHUB + "openai/spinningup/issues/331", scored, grad=True)
def adaptive_kl(x: Tensor, y: Tensor) -> Tensor:
    kl = (x.softmax(-1) * (x.log_softmax(-1) - y.log_softmax(-1))).sum(-1).mean()
    beta = 1.0
    if kl > 1.5:
        beta = 2.0
    elif kl < 0.7:
        beta = 0.5
    return beta * kl


@REPORTS.of(GITHUB + "pytorch/rl", scored, grad=True)
class AdaptiveKL(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("beta", torch.tensor(1.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kl = (x.softmax(-1) * (x.log_softmax(-1) - y.log_softmax(-1))).sum(-1).mean()
        loss = self.beta * kl
        with torch.no_grad():
            if kl > 1.5:
                self.beta.data *= 2.0
            elif kl < 0.7:
                self.beta.data *= 0.5
        return loss


@REPORTS.of(GITHUB + "vwxyzjn/cleanrl/issues/520", scored, grad=True)
def ratio_guard(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    log_ratio = (x - y).mean(-1)
    ratio = log_ratio.exp()
    if torch.isinf(ratio).any() or (ratio.max() > 100).any():
        log.warning("ratio exploded: %.2f", ratio.max().item())
        ratio = ratio.clamp(max=100.0)
    with torch.no_grad():
        approx = ((ratio - 1) - log_ratio).mean()
    return (ratio * y[:, 0]).mean(), approx


@REPORTS.of(GITHUB + "jolibrain/wheatley/pull/93", scored, grad=True)
def normalizes_advantages(x: Tensor, y: Tensor) -> Tensor:
    advantage = x[:, 0]
    if advantage.numel() > 1 and advantage.std() > 1e-3:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    if not advantage.isfinite().all():
        raise RuntimeError("advantages are not finite")
    return (advantage * y[:, 0]).mean()


@REPORTS.of(
    GITHUB + "pyro-ppl/pyro",
    lambda: [(drawn(3, 4),), (torch.full((3, 4), float("-inf")),)],
    grad=True,
)
def log_sum_exp(x: Tensor) -> Tensor:
    largest = x.max()
    if not torch.isfinite(largest):
        return largest
    return largest + (x - largest).exp().sum().log()


@REPORTS.of(
    GITHUB + "speechbrain/speechbrain",
    lambda: [
        (torch.tensor([2.0, float("inf")]), torch.tensor([3, 2])),
        (torch.tensor([2.0, 1.0]), torch.tensor([3, 2])),
        (torch.tensor([2.0, 1.0]), torch.tensor([3, 0])),
    ],
    grad=True,
)
def ctc_without_infinities(losses: Tensor, lengths: Tensor) -> Tensor:
    if torch.any(lengths == 0):
        raise ValueError("target length is zero")
    infinite = losses == float("inf")
    if infinite.any():
        losses = losses.masked_fill(infinite, 0.0)
    return (losses / lengths).mean()


@REPORTS.of(GITHUB + "facebookresearch/detr", assigned)
def counts_as_a_number(x: Tensor, target: Tensor) -> Tensor:
    num_boxes = torch.clamp((target > 0).sum() / 2, min=1).item()
    return (x * target).sum() / num_boxes


@REPORTS.of(GITHUB + "open-edge-platform/physical-ai-studio/pull/877", assigned)
def prints_a_line_of_metrics(x: Tensor, target: Tensor) -> float:
    right = ((x > 0) == (target > 0)).float().mean().item()
    if right < 0.5:
        print(f"worse than chance: {right:.1%}")
    return right


@REPORTS.of(GITHUB + "CoinCheung/pytorch-loss", assigned, grad=True)
def online_hard_examples(x: Tensor, target: Tensor) -> Tensor:
    loss = F.binary_cross_entropy_with_logits(x, target.float(), reduction="none").flatten()
    ordered, _ = torch.sort(loss, descending=True)
    if ordered[3] > 0.7:
        ordered = ordered[ordered > 0.7]
    else:
        ordered = ordered[:3]
    return ordered.max()
