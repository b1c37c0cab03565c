"""Losses that guard a division, sampler steps that test sigma, optimizers and schedules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import InputSets, cases, rows, signs
from ..support.program import WHERE, Family, cond, keep

FAMILY = Family("losses_and_samplers")


def fraction(seed: int) -> InputSets:
    return [
        (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 1.0])),
        (torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)),
    ]


@FAMILY.program(fraction, WHERE, grad=True, tags="inductor")
def masked_mean(loss: Tensor, mask: Tensor) -> Tensor:
    total = (loss * mask).sum()
    count = mask.sum()
    return total / count if count != 0 else total * count


@FAMILY.program(fraction, WHERE, grad=True)
def masked_mean_or_new_zero(loss: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum()
    if count > 0:
        return (loss * mask).sum() / count
    return loss.new_zeros(())


@FAMILY.program(fraction, WHERE, grad=True)
def masked_mean_or_python_zero(loss: Tensor, mask: Tensor) -> Tensor:
    return (loss * mask).sum() / mask.sum() if mask.sum() != 0 else 0.0  # type: ignore[return-value]


@FAMILY.program(fraction, WHERE, grad=True, frozen=(1,))
def quotient_with_frozen_denominator(num: Tensor, den: Tensor) -> Tensor:
    if den.sum() != 0:
        out = num.sum() / den.sum()
    else:
        out = num.sum() * 0
    return out


# The norm is made before the branch and used by one arm: its backward could make NaN of a zero.
@FAMILY.program(
    rows([3.0, 4.0], [0.0, 0.0]), WHERE, expect_grad=(WHERE | keep("nan_grad"),), grad=True
)
def unit_vector(x: Tensor) -> Tensor:
    norm = x.norm()
    return x / norm if norm > 0 else x * 0


@FAMILY.program(
    rows([3.0, 4.0], [0.3, 0.4]),
    WHERE,
    expect_grad=(WHERE | keep("nan_grad"),),
    grad=True,
    tags="inductor",
)
def clip_by_norm(x: Tensor) -> Tensor:
    norm = x.norm()
    if norm > 1.0:
        x = x / norm
    return x + 0


@FAMILY.program(
    cases(lambda: [(torch.tensor([1.0, 5.0]), torch.zeros(2)), (torch.ones(2), torch.zeros(2))]),
    WHERE,
    grad=True,
)
def huber_by_branch(x: Tensor, target: Tensor) -> Tensor:
    error = x - target
    if error.abs().max() > 2.2:
        return (error.abs() - 0.5).mean()
    return (error**2).mean() / 2


@FAMILY.program(rows([0.9, 0.1], [0.0, 1.0]), WHERE, grad=True)
def entropy_of_distribution(p: Tensor) -> Tensor:
    if (p > 0).all():
        return -(p * p.log()).sum()
    return (p * 0).sum()


SIGMAS = cases(
    lambda: [
        (torch.linspace(-1, 1, 6), torch.tensor([2.0, 1.0])),
        (torch.linspace(-1, 1, 6), torch.tensor([2.0, 0.0])),
    ]
)


def denoise(x: Tensor, sigma: Tensor) -> Tensor:
    return x / (sigma**2 + 1)


@FAMILY.program(SIGMAS, WHERE, grad=True, tags="inductor contexts")
def heun_or_euler(x: Tensor, sigmas: Tensor) -> Tensor:
    d = (x - denoise(x, sigmas[0])) / sigmas[0]
    dt = sigmas[1] - sigmas[0]
    if sigmas[1] == 0:
        x = x + d * dt
    else:
        x_2 = x + d * dt
        d_2 = (x_2 - denoise(x_2, sigmas[1])) / sigmas[1]
        x = x + (d + d_2) / 2 * dt
    return x


@FAMILY.program(SIGMAS, cond("random_op"))
def ancestral_noise(x: Tensor, sigmas: Tensor) -> Tensor:
    if sigmas[1] > 0:
        x = x + torch.randn_like(x) * sigmas[1]
    return x


@FAMILY.program(SIGMAS, WHERE, grad=True)
def log_sigma_step(x: Tensor, sigmas: Tensor) -> Tensor:
    s, t = sigmas[0], sigmas[1]
    return x * (t.log() - s.log()).exp() if t > 0 else x * (t * s)


@FAMILY.program(
    cases(
        lambda: [
            (torch.ones(3), torch.tensor(0.5), torch.tensor(9.0)),
            (torch.ones(3), torch.tensor(0.5), torch.tensor(3.0)),
        ]
    ),
    WHERE,
    grad=True,
)
def rectified_adam_term(g: Tensor, m: Tensor, rho: Tensor) -> Tensor:
    if rho > 5:
        rect = ((rho - 4) * (rho - 2) / ((9 - 4) * (9 - 2) * rho)).sqrt()
        return g * rect * m
    return g * m + rho * 0


@FAMILY.program(rows([4.0, 1.0], [1.0, 4.0]), WHERE, grad=True, tags="inductor")
def trust_ratio(x: Tensor) -> Tensor:
    weight_norm, grad_norm = x[0].abs(), x[1].abs()
    ratio = weight_norm / grad_norm if weight_norm > grad_norm else grad_norm / weight_norm
    return x * ratio


@FAMILY.program(signs((4, 3)), WHERE, grad=True)
class LongRopeScale(nn.Module):
    """Longrope picks its factors by the longest position."""

    short: Tensor
    long: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("short", torch.tensor([1.0, 1.1, 1.2]))
        self.register_buffer("long", torch.tensor([2.0, 2.1, 2.2]))

    def forward(self, x: Tensor) -> Tensor:
        factors = self.long if x.amax() + x.sum() > 1 else self.short
        return (x / factors).cos()


@FAMILY.program(signs((4, 3)), WHERE, grad=True)
def straight_through_quantizer(x: Tensor) -> Tensor:
    scale = x.abs().max() / 127 if x.sum() > 0 else x.abs().mean()
    q = (x / scale).round() * scale
    return x + (q - x).detach()


@FAMILY.program(signs((4, 3)), WHERE, grad=True)
def temperature(x: Tensor) -> Tensor:
    logits = x - x.amax(-1, keepdim=True)
    if x.sum() > 0:
        logits = logits / 0.7
    return F.log_softmax(logits, -1)
