"""Losses, optimizers, scalers, observers and codebooks that test what they compute."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .report import InputSets, Reports, attributes, drawn

REPORTS = Reports()
GITHUB = "https://github.com/"


def masks() -> InputSets:
    some, none = torch.tensor([1.0, 0, 1, 1]), torch.zeros(4)
    return [(drawn(4), some), (drawn(4), none), (drawn(4, seed=1), torch.ones(4))]


@REPORTS.of(GITHUB + "PrimeIntellect-ai/prime-rl/pull/215", masks, grad=True)
def mean_over_a_mask(loss: Tensor, mask: Tensor) -> Tensor:
    if mask.sum() == 0:
        return (loss * mask).sum()
    return (loss * mask).sum() / mask.sum()


@REPORTS.of(GITHUB + "kornia/kornia/pull/3792", masks, grad=True)
def ignores_pixels_or_none(loss: Tensor, mask: Tensor) -> Tensor:
    ignored = None if (mask == 1).all() else mask
    if ignored is not None:
        loss = loss * ignored
    return loss.pow(2).mean()


@REPORTS.of(GITHUB + "open-mmlab/mmdetection/pull/9185", masks, grad=True)
def loss_without_positives(loss: Tensor, mask: Tensor) -> dict[str, Tensor]:
    positives = mask.sum()
    if positives > 0:
        loss_mask = (loss.sigmoid() * mask).sum() / positives
    else:
        loss_mask = loss.sum() * 0
    return {"loss_mask": loss_mask, "loss_cls": loss.abs().mean()}


@REPORTS.of(GITHUB + "Project-MONAI/MONAI/pull/8719", masks, grad=True)
def safe_mean_of_both(x: Tensor, mask: Tensor) -> Tensor:
    def safe(value: Tensor) -> Tensor:
        if value.count_nonzero() == 0:
            return torch.tensor(0.0)
        return value.mean()

    return safe((x - 0.5) ** 2 * mask) + safe((x + 0.5) ** 2 * (1 - mask))


@REPORTS.of(GITHUB + "Deci-AI/super-gradients/issues/912", masks, grad=True)
def mean_of_selected_or_zero(loss: Tensor, mask: Tensor) -> Tensor:
    selected = loss[mask > 0]
    if selected.numel() == 0:
        return loss.sum() * 0
    return selected.mean()


@REPORTS.of(GITHUB + "open-mmlab/mmpretrain/pull/1426", masks, grad=True)
def losses_of_tasks_in_a_dict(x: Tensor, mask: Tensor) -> dict[str, Tensor]:
    losses = {"main": x.square().mean()}
    if mask.any():
        losses["aux"] = (x * mask).abs().sum()
    return losses


@REPORTS.of(GITHUB + "pytorch/vision/pull/9518", masks, grad=True)
def repairs_negative_sides(x: Tensor, mask: Tensor) -> Tensor:
    wide = x.clone()
    if (wide < 0).any():
        wide[wide < 0] = 0.0
    return (wide * mask).sum()


@REPORTS.of(GITHUB + "sgl-project/SpecForge/pull/222", masks)
def accuracy_as_a_number(x: Tensor, mask: Tensor) -> float:
    right = ((x > 0).float() * mask).sum().item()
    return right / (mask.sum().item() + 1e-6)


def losses() -> InputSets:
    return [(torch.tensor([1.0, 2]),), (torch.tensor([1.0, float("nan")]),), (torch.ones(2),)]


@REPORTS.of(GITHUB + "karpathy/nanoGPT/pull/227", losses, grad=True, state=attributes("skipped"))
class SkipsNan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.skipped = 0

    def forward(self, x: Tensor) -> Tensor | None:
        loss = (x * self.weight).sum()
        if torch.isnan(loss):
            self.skipped += 1
            return None
        return loss


@REPORTS.of(GITHUB + "pytorch/torchtitan/pull/3863", losses, grad=True)
def crashes_on_a_bad_loss(x: Tensor) -> Tensor:
    loss = x.pow(2).mean()
    if not torch.isfinite(loss):
        raise RuntimeError(f"invalid loss {loss.item()}")
    return loss


@REPORTS.of(GITHUB + "k2-fsa/icefall/pull/525", losses, grad=True)
def filters_bad_losses(x: Tensor) -> tuple[Tensor, bool]:
    finite = torch.isfinite(x)
    all_finite = True
    if not finite.all():
        all_finite = False
        x = torch.where(finite, x, torch.zeros(()))
    return x.sum(), all_finite


@REPORTS.of(GITHUB + "facebookresearch/mmf/pull/1073", losses)
def logs_and_goes_on(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for part in x.unbind():
        if not torch.isfinite(part):
            print("skipping a loss that is not finite")
            continue
        total = total + part
    return total


def gradients() -> InputSets:
    return [
        (torch.ones(3), torch.tensor([3.0, 4.0, 0.0])),
        (torch.ones(3), torch.tensor([0.1, 0.2, 0.0])),
        (torch.ones(3), torch.tensor([float("inf"), 0.2, 0.0])),
    ]


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/60691", gradients)
def clips_by_total_norm(weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    total = grad.norm(2)
    coefficient = 1.0 / (total + 1e-6)
    if coefficient < 1:
        grad.mul_(coefficient)
    return weight - 0.1 * grad, total


@REPORTS.of(GITHUB + "Haian-Jin/LVSM/pull/19", gradients)
class SkipsLargeSteps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("momentum", torch.zeros(3))

    def forward(self, weight: Tensor, grad: Tensor) -> Tensor:
        norm = grad.norm()
        if norm > 2.0:
            print(f"grad norm too large {norm.item():.2f}")
        if norm > 2.0 or not torch.isfinite(norm):
            return weight
        self.momentum.mul_(0.9).add_(grad)
        return weight - 0.1 * self.momentum


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/152279", gradients)
class ScalerStep(nn.Module):
    """Dynamic loss scaling: the caller learns whether the step was made."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(8.0))
        self.register_buffer("tracker", torch.tensor(0))

    def forward(self, weight: Tensor, grad: Tensor) -> bool:
        unscaled = grad / self.scale
        stepped = False
        if torch.isfinite(unscaled).all():
            weight.sub_(unscaled, alpha=0.1)
            self.tracker += 1
            stepped = True
        else:
            self.scale *= 0.5
            self.tracker.zero_()
        if self.tracker == 2:
            self.scale *= 2.0
            self.tracker.zero_()
        return stepped


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/67590", gradients, state=attributes("stage"))
class ScalerWithStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage = "ready"
        self.scale = 8.0

    def forward(self, weight: Tensor, grad: Tensor) -> Tensor:
        found = torch.isinf(grad).any() | torch.isnan(grad).any()
        if found:
            self.stage = "skipped"
        else:
            self.stage = "stepped"
            weight = weight - grad / self.scale
        return weight * 1


@REPORTS.of(GITHUB + "ultralytics/ultralytics/pull/22350", gradients)
def steps_if_finite(weight: Tensor, grad: Tensor) -> Tensor:
    with torch.no_grad():
        if torch.isfinite(grad).all():
            weight.add_(grad, alpha=-0.1)
        grad.zero_()
    return weight.sum()


@REPORTS.of(GITHUB + "facebookresearch/dadaptation/issues/42", gradients, state=attributes("d"))
class DAdaptation(nn.Module):
    """The distance estimate is a Python number that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.d = 1e-2
        self.register_buffer("s", torch.zeros(3))

    def forward(self, weight: Tensor, grad: Tensor) -> Tensor:
        self.s.add_(torch.nan_to_num(grad, posinf=1.0), alpha=self.d)
        norm = self.s.abs().sum().item()
        if norm == 0:
            return weight.sum()
        hat = (grad * self.s).sum().item() / norm
        self.d = max(self.d, min(hat, self.d * 2))
        return (weight - self.d * self.s).sum()


@REPORTS.of(GITHUB + "konstmish/prodigy/pull/25", gradients)
class ProdigyStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("d", torch.tensor(1e-2))
        self.register_buffer("best", torch.tensor(1e-2))

    def forward(self, weight: Tensor, grad: Tensor) -> Tensor:
        hat = (grad * weight).sum() / (grad.abs().sum() + 1e-8)
        if self.d == 1e-2:
            self.d.copy_(torch.maximum(self.d, hat))
        self.best.copy_(torch.maximum(self.best, hat))
        self.d.copy_(torch.minimum(self.best, self.d * 2))
        return weight - self.d * grad


@REPORTS.of(GITHUB + "ai2cm/ace/pull/1265", gradients, state=attributes("last"))
class RemembersTheNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: float | None = None

    def forward(self, weight: Tensor, grad: Tensor) -> Tensor:
        norm = grad.norm()
        if norm > 1.0:
            grad = grad / norm
        self.last = norm.item()
        return weight - grad


@REPORTS.of(GITHUB + "kyutai-labs/pocket-tts/pull/262", gradients)
def stops_training(weight: Tensor, grad: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(grad)
    if not torch.isfinite(norm):
        raise FloatingPointError("gradient is not finite")
    return weight - grad


def observed() -> InputSets:
    return [(drawn(6),), (drawn(6, seed=1) * 3,), (drawn(6, seed=2) * 0.1,)]


@REPORTS.of(GITHUB + "pytorch/pytorch/pull/24923", observed, state=attributes("minimum", "maximum"))
class MinMaxObserver(nn.Module):
    """The first call binds what later ones compare with."""

    def __init__(self) -> None:
        super().__init__()
        self.minimum: Tensor | None = None
        self.maximum: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.min(), x.max()
        if self.minimum is None or self.maximum is None:
            self.minimum, self.maximum = low, high
        else:
            if low < self.minimum:
                self.minimum = low
            if high > self.maximum:
                self.maximum = high
        return (self.maximum - self.minimum) / 255


@REPORTS.of(GITHUB + "pytorch/pytorch/pull/26420", observed, grad=True)
class FakeQuantize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("observer_enabled", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("fake_quant_enabled", torch.tensor([0], dtype=torch.uint8))
        self.register_buffer("scale", torch.tensor([1.0]))

    def forward(self, x: Tensor) -> Tensor:
        if self.observer_enabled[0] == 1:
            self.scale.copy_(x.detach().abs().max() / 127)
            self.fake_quant_enabled[0] = 1
        if self.fake_quant_enabled[0] == 1:
            x = torch.fake_quantize_per_tensor_affine(x, self.scale, torch.tensor([0]), -128, 127)
        return x * 1.0


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/100654", observed)
class WarnsWithoutRange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.low == float("inf") and self.high == float("-inf"):
            print("must run the observer first")
            scale, zero = torch.tensor([1.0]), torch.tensor([0])
        else:
            scale = ((self.high - self.low) / 255).reshape(1)
            zero = torch.round(-self.low / scale).long()
        self.low.copy_(torch.minimum(self.low, x.min()))
        self.high.copy_(torch.maximum(self.high, x.max()))
        return scale, zero


@REPORTS.of(GITHUB + "vllm-project/compressed-tensors/pull/368", observed)
def quantization_scale(x: Tensor) -> Tensor:
    limit = x.abs().amax()
    if limit == 0:
        scale = torch.ones(())
    elif limit > 2:
        scale = limit.clamp(max=4.0) / 127
    else:
        scale = limit / 127
    return (x / scale).round().clamp(-128, 127) * scale


@REPORTS.of(GITHUB + "facebookresearch/encodec/issues/33", observed)
class ExpiresCodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("embed", drawn(4, 1, seed=5))
        self.register_buffer("cluster_size", torch.tensor([3.0, 3, 3, 3]))

    def expire(self, x: Tensor) -> None:
        dead = self.cluster_size < 2
        if not torch.any(dead):
            return
        self.embed.data.copy_(torch.where(dead[:, None], x[:4], self.embed))

    def forward(self, x: Tensor) -> Tensor:
        flat = x[:, None]
        codes = (flat - self.embed.T).abs().argmin(1)
        hits = F.one_hot(codes, 4).float()
        self.expire(flat)
        self.cluster_size.mul_(0.5).add_(hits.sum(0), alpha=0.5)
        return self.embed[codes]


@REPORTS.of(GITHUB + "lucidrains/vector-quantize-pytorch/issues/167", observed, grad=True)
class InitialisesCodebook(nn.Module):
    """k-means at the first batch, a straight-through result after it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("initted", torch.tensor([False]))
        self.register_buffer("embed", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.initted:
            self.embed.data.copy_(x.detach()[:3])
            self.initted.data.copy_(torch.tensor([True]))
        codes = (x[:, None] - self.embed).abs().argmin(1)
        quantized = self.embed[codes]
        loss = (quantized.detach() - x).pow(2).mean()
        return x + (quantized - x).detach(), loss


@REPORTS.of(GITHUB + "theAdamColton/vq-clip", observed)
class TracksUsage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("usage", torch.zeros(2))
        self.register_buffer("resets", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.usage += torch.stack(((x > 0).sum(), (x <= 0).sum()))
        if self.usage.max() > 7:
            self.usage.zero_()
            self.resets += 1
        return x * self.usage.sum()


def improvements() -> InputSets:
    return [(torch.tensor(value),) for value in (2.0, 1.0, 1.5, 1.2, 0.5)]


@REPORTS.of(
    GITHUB + "yoshitomo-matsubara/torchdistill/pull/157",
    improvements,
    state=attributes("best", "bad"),
)
class EarlyStopping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.best = float("inf")
        self.bad = 0

    def forward(self, loss: Tensor) -> bool:
        if loss < self.best:
            self.best = loss.item()
            self.bad = 0
        else:
            self.bad += 1
        return self.bad >= 2


@REPORTS.of(
    GITHUB + "allenai/olmoearth_pretrain/issues/135", improvements, state=attributes("history")
)
class KeepsHistory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.history: list[Any] = []

    def forward(self, loss: Tensor) -> Tensor:
        if loss > 1.1:
            self.history.append(loss.item())
        return loss * 2


@REPORTS.of(GITHUB + "pytorch/pytorch/pull/142472", improvements)
class Plateau(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rate", torch.tensor(1.0))
        self.register_buffer("best", torch.tensor(float("inf")))
        self.register_buffer("bad", torch.tensor(0))

    def forward(self, loss: Tensor) -> Tensor:
        if loss < self.best * 0.99:
            self.best.copy_(loss)
            self.bad.zero_()
        else:
            self.bad += 1
        if self.bad > 1:
            self.rate *= 0.5
            self.bad.zero_()
        return self.rate * loss
