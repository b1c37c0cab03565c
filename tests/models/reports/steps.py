"""Optimizers, averages, quantizers, scalers and the checks of a training loop."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from .report import InputSets, Reports, attributes, drawn

REPORTS = Reports()
GITHUB = "https://github.com/"
log = logging.getLogger("outside")


def updates() -> InputSets:
    return [
        (drawn(3), drawn(3, seed=1)),
        (torch.zeros(3), drawn(3, seed=1)),
        (drawn(3), torch.zeros(3)),
        (drawn(3) * 50, drawn(3, seed=1)),
    ]


@REPORTS.of(GITHUB + "mosaicml/composer/pull/967", updates)
def lamb_trust_ratio(weight: Tensor, update: Tensor) -> Tensor:
    w_norm, g_norm = weight.norm(2), update.norm(2)
    trust = 1.0
    if w_norm > 0 and g_norm > 0:
        trust = (w_norm / g_norm).item()
    return weight.add(update, alpha=-0.1 * trust)


@REPORTS.of(GITHUB + "NVIDIA/apex", updates)
def lars_trust_ratio(weight: Tensor, update: Tensor) -> Tensor:
    w_norm, g_norm = torch.norm(weight.data), torch.norm(update.data)
    if w_norm != 0 and g_norm != 0:
        rate = 0.02 * w_norm / (g_norm + w_norm * 1e-4 + 1e-8)
        rate = min(rate / 0.1, 1)
        update += 1e-4 * weight
        update *= rate
    return weight - 0.1 * update


@REPORTS.of(GITHUB + "cybertronai/pytorch-lamb/issues/5", updates)
def trust_ratio_by_ternary(weight: Tensor, update: Tensor) -> Tensor:
    w_norm = weight.pow(2).sum().sqrt().clamp(0, 10)
    g_norm = update.pow(2).sum().sqrt()
    ratio = 1.0 if w_norm == 0 or g_norm == 0 else w_norm / g_norm
    weight.add_(update * ratio, alpha=-0.01)
    return weight


@REPORTS.of(GITHUB + "deepmodeling/deepmd-kit/pull/5519", updates)
class SkipsOutlierSteps(nn.Module):
    """A running mean of norms; a step far above it is clipped and told."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(1.0))
        self.register_buffer("clipped", torch.tensor(0))

    def forward(self, weight: Tensor, update: Tensor) -> Tensor:
        norm = weight.norm()
        if norm > 4 * self.mean:
            log.info("clipping a norm of %s", norm.item())
            weight = weight * (4 * self.mean / norm)
            self.clipped += 1
        else:
            self.mean.lerp_(norm, 0.1)
        return weight + update


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/117807", lambda: [(drawn(2, 3),)] * 8)
class RectifiedAdam(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(0.0))
        self.register_buffer("m", torch.zeros(2, 3))
        self.register_buffer("v", torch.zeros(2, 3))

    def forward(self, grad: Tensor) -> Tensor:
        self.step += 1
        step = self.step.item()
        self.m.lerp_(grad, 0.1)
        self.v.mul_(0.9).add_(grad * grad, alpha=0.1)
        rho_inf = 2 / (1 - 0.9) - 1
        rho = rho_inf - 2 * step * 0.9**step / (1 - 0.9**step)
        if rho > 5.0:
            rect = math.sqrt(
                (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
            )
            return self.m * rect / (self.v.sqrt() + 1e-8)
        return self.m * 1.0


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/117807", lambda: [(drawn(2, 3, seed=s),) for s in range(8)]
)
class RectifiedAdamOnTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(0.0))
        self.register_buffer("m", torch.zeros(2, 3))

    def forward(self, grad: Tensor) -> Tensor:
        self.step += 1
        self.m.lerp_(grad, 0.1)
        decay = 0.9**self.step
        rho = 19 - 2 * self.step * decay / (1 - decay)
        if rho > 5.0:
            return self.m * ((rho - 4) * (rho - 2) / rho).sqrt()
        return self.m * 1.0


@REPORTS.of(GITHUB + "pytorch/pytorch", lambda: [(drawn(3, seed=s),) for s in range(4)])
class AveragedModel(nn.Module):
    """SWA: the first call copies, later ones average."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n_averaged", torch.tensor(0))
        self.register_buffer("average", torch.zeros(3))

    def forward(self, weight: Tensor) -> Tensor:
        if self.n_averaged == 0:
            self.average.detach().copy_(weight)
        else:
            self.average.detach().add_((weight - self.average) / (self.n_averaged + 1))
        self.n_averaged += 1
        return self.average * 2


@REPORTS.of(GITHUB + "lucidrains/ema-pytorch", lambda: [(drawn(3, seed=s),) for s in range(7)])
class EMAWithWarmup(nn.Module):
    """Updates every second step, copies at first, then lerps with a growing decay."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(0))
        self.register_buffer("initted", torch.tensor(False))
        self.ema = nn.Parameter(torch.zeros(3), requires_grad=False)

    def decay(self) -> Any:
        epoch = (self.step - 2 - 1).clamp(min=0.0)
        value = 1 - (1 + epoch / 1.0) ** -(2 / 3)
        if epoch.item() <= 0:
            return 0.0
        return value.clamp(min=0.0, max=0.99).item()

    def update(self, weight: Tensor) -> None:
        step = self.step.item()
        self.step += 1
        if step % 2 != 0:
            return
        if step <= 2:
            self.ema.data.copy_(weight)
            return
        if not self.initted.item():
            self.ema.data.copy_(weight)
            self.initted.data.copy_(torch.tensor(True))
        self.ema.data.lerp_(weight, 1.0 - self.decay())

    @torch.no_grad()
    def forward(self, weight: Tensor) -> Tensor:
        self.update(weight)
        return self.ema * 1.0


@REPORTS.of(
    GITHUB + "pytorch/rl",
    lambda: [(drawn(3, seed=s),) for s in range(5)],
    state=attributes("delayed"),
)
class DelayedPolicyUpdate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("it", torch.tensor(0))
        self.register_buffer("target", torch.zeros(3))
        self.delayed = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        self.it += 1
        critic = x.pow(2).sum()
        actor = None
        if self.it % 2 == 0:
            actor = -x.sum()
            self.target.mul_(0.9).add_(x, alpha=0.1)
            self.delayed += 1
        return critic, actor


@REPORTS.of(
    GITHUB + "hustzxd/LSQuantization", lambda: [(drawn(6) * s,) for s in (0.0, 1.0, 2.0)], grad=True
)
class LearnedStepSize(nn.Module):
    """LSQ: the first batch sets the scale, which is then learned."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("init_state", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.init_state == 0:
            self.scale.data.copy_(2 * x.abs().mean() / 7**0.5 + 0.5)
            self.init_state.fill_(1)
        s = self.scale
        q = (x / s).clamp(-8, 7)
        q = q + (q.round() - q).detach()
        return q * s


@REPORTS.of(GITHUB + "pytorch/pytorch", lambda: [(drawn(6) * s,) for s in (1.0, 3.0)])
class CheckedObserver(nn.Module):
    """A helper that warns, asserts and returns a truth value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    def valid(self) -> bool:
        if self.low == float("inf") and self.high == float("-inf"):
            warnings.warn("must run observer before calling calculate_qparams.")
            return False
        assert self.low <= self.high, f"min {self.low} should be less than max {self.high}"
        return True

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.valid():
            result = torch.tensor([1.0]), torch.tensor([0], dtype=torch.int32)
        else:
            scale = torch.max((self.high - self.low) / 255, torch.tensor(1e-6))
            zero = (-128 - torch.round(self.low / scale)).to(torch.int32)
            result = scale.reshape(1), zero.clamp(-128, 127).reshape(1)
        self.low.copy_(torch.min(self.low, x.min()))
        self.high.copy_(torch.max(self.high, x.max()))
        return result


@REPORTS.of(GITHUB + "pytorch/pytorch", lambda: [(drawn(6) * s,) for s in (1.0, 3.0, 0.1)])
class HistogramLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("histogram", torch.zeros(4))
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.aminmax()
        fresh = torch.histc(x, 4)
        if self.low == float("inf"):
            self.low.copy_(low)
            self.high.copy_(high)
            self.histogram.copy_(fresh)
        elif low >= self.low and high <= self.high:
            self.histogram += fresh
        else:
            self.low.copy_(torch.minimum(low, self.low))
            self.high.copy_(torch.maximum(high, self.high))
            self.histogram.mul_(0.5).add_(fresh)
        return x.clamp(self.low, self.high)


@REPORTS.of(GITHUB + "facebookresearch/moco", lambda: [(drawn(2, 3, seed=s),) for s in range(4)])
class MomentumQueue(nn.Module):
    """MoCo: a pointer in a buffer says where the keys are written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(3, 6))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def forward(self, keys: Tensor) -> Tensor:
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + 2] = keys.T
        self.queue_ptr[0] = (ptr + 2) % 6
        return keys @ self.queue


@REPORTS.of(GITHUB + "pytorch/rl", lambda: [(drawn(3, seed=s),) for s in range(4)])
class RunningMeanStd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("m2", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        delta = x - self.mean
        self.mean += delta / self.count
        self.m2 += delta * (x - self.mean)
        if self.count < 2:
            return torch.ones(3)
        return (self.m2 / (self.count - 1)).sqrt()


@REPORTS.of(
    GITHUB + "PKU-Alignment/omnisafe",
    lambda: [(torch.tensor(v),) for v in (1.0, 4.0, 0.5)],
    state=attributes("integral"),
)
class PIDLagrange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.integral = 0.0

    def forward(self, cost: Tensor) -> Tensor:
        delta = cost.item() - 1.5
        self.integral = max(0.0, self.integral + delta * 0.1)
        penalty = max(0, delta * 0.5 + self.integral)
        return cost * penalty


def losses() -> InputSets:
    return [(torch.tensor(v),) for v in (2.0, 1.0, 1.5, float("nan"), 0.2)]


@REPORTS.of(GITHUB + "Lightning-AI/pytorch-lightning", losses, state=attributes("best", "wait"))
class EarlyStop(nn.Module):
    """Lightning's: a flag, a reason, the best score and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.best = torch.tensor(float("inf"))
        self.wait = 0

    def forward(self, current: Tensor) -> tuple[bool, str | None]:
        stop, reason = False, None
        if not torch.isfinite(current):
            stop = True
            reason = f"Monitored metric = {current} is not finite."
        elif current < 0.5:
            stop = True
            reason = "Stopping threshold reached."
        elif current < self.best:
            self.best = current
            self.wait = 0
        else:
            self.wait += 1
            if self.wait >= 3:
                stop = True
                reason = f"Best score: {self.best:.3f}."
        return stop, reason


@REPORTS.of(GITHUB + "Lightning-AI/pytorch-lightning", losses)
class RaisesOnNanParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(2))
        self.b = nn.Parameter(torch.tensor([1.0, float("inf")]))

    def forward(self, loss: Tensor) -> Tensor:
        if not torch.isfinite(loss).all():
            raise ValueError(f"The loss returned in `training_step` is {loss}.")
        for name, param in self.named_parameters():
            if not torch.isfinite(param * loss.clamp(max=1)).all():
                raise ValueError(f"Detected nan and/or inf values in `{name}`.")
        return loss


class CancelBatch(Exception):
    """As fastai's control flow."""


@REPORTS.of(GITHUB + "fastai/fastai", losses)
def cancels_a_batch(loss: Tensor) -> Tensor:
    if torch.isinf(loss) or torch.isnan(loss):
        raise CancelBatch
    return loss * 2


@REPORTS.of(GITHUB + "fastai/fastai", losses, state=attributes("best"))
class LRFinder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.best: Any = float("inf")

    def forward(self, loss: Tensor) -> Tensor:
        if loss < self.best:
            self.best = loss
        if loss > 4 * self.best:
            raise CancelBatch("diverged")
        return loss * 1


@REPORTS.of(GITHUB + "pyro-ppl/pyro", losses)
def svi_warns(loss: Tensor) -> float:
    if torch.isnan(loss):
        warnings.warn("Encountered NaN: loss")
    return loss.item()


@REPORTS.of(GITHUB + "facebookresearch/fairseq", losses, state=attributes("scale", "iter"))
class LossScaler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.iter = 8.0, 0

    def forward(self, norm: Tensor) -> Tensor:
        overflow = norm == float("inf") or norm != norm
        if overflow:
            self.scale /= 2
            self.iter += 1
            raise OverflowError("setting loss scale to: " + str(self.scale))
        self.iter += 1
        return norm / self.scale


@REPORTS.of(
    GITHUB + "NVIDIA/Megatron-LM", losses, state=attributes("_scale", "_growth", "_hysteresis")
)
class MegatronScaler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._scale = torch.tensor([8.0])
        self._growth, self._hysteresis = 0, 2

    def forward(self, norm: Tensor) -> Tensor:
        found_inf = not torch.isfinite(norm)
        if found_inf:
            self._growth = 0
            self._hysteresis -= 1
            if self._hysteresis <= 0:
                self._scale = torch.max(self._scale * 0.5, torch.tensor([1.0]))
        else:
            self._growth += 1
            if self._growth == 2:
                self._growth = 0
                self._hysteresis = 2
                self._scale = self._scale * 2.0
        return norm / self._scale
