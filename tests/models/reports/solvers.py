"""Solvers, samplers and searches that stop, accept or reject by what they compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .report import InputSets, Reports, attributes, drawn

REPORTS = Reports()
GITHUB = "https://github.com/"


def starts() -> InputSets:
    return [(torch.tensor([1.0, 2.0]),), (torch.tensor([0.1, -0.2]),), (torch.tensor([4.0, 0.0]),)]


def slope(y: Tensor) -> Tensor:
    return -y * y.abs()


@REPORTS.of(GITHUB + "rtqichen/torchdiffeq/pull/160", starts)
def one_adaptive_step(y: Tensor) -> tuple[Tensor, Tensor]:
    dt = torch.tensor(0.5)
    rough = y + dt * slope(y)
    fine = y + dt / 2 * (slope(y) + slope(rough))
    error = (fine - rough).abs().max()
    accept = error <= 0.1
    if accept:
        y = fine
    dt = dt * (0.1 / error.clamp(min=1e-3)).sqrt().clamp(0.2, 5.0)
    return y, dt


@REPORTS.of(GITHUB + "rtqichen/torchdiffeq/pull/210", starts)
def integrates_with_rejection(y: Tensor) -> tuple[Tensor, int]:
    t, dt, steps = 0.0, 0.25, 0
    time = torch.tensor(t)
    size = torch.tensor(dt)
    while time < 1.0:
        rough = y + size * slope(y)
        fine = y + size / 2 * (slope(y) + slope(rough))
        error = (fine - rough).abs().max()
        if error < 0.05:
            y, time = fine, time + size
            size = size * 1.5
        else:
            size = size * 0.5
        steps += 1
    return y, steps


@REPORTS.of(GITHUB + "rtqichen/torchdiffeq/issues/184", starts)
def asserts_no_underflow(y: Tensor) -> Tensor:
    dt = 1e-3 / y.abs().max()
    time = torch.tensor(1.0)
    assert time + dt > time, f"underflow in dt {dt.item()}"
    assert torch.isfinite(y).all(), f"non-finite values in state `y`: {y}"
    return y + dt * slope(y)


@REPORTS.of(GITHUB + "huggingface/lerobot/pull/2600", starts)
def denoises_until_time(x: Tensor) -> Tensor:
    dt = torch.tensor(-0.25)
    time = torch.tensor(1.0)
    while time >= -dt / 2:
        x = x + dt * torch.tanh(x) * time
        time = time + dt
    return x


@REPORTS.of(GITHUB + "dynamiqs/dynamiqs/pull/49", starts)
class Controller(nn.Module):
    """A step-size controller with a flag for rejected steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("dt", torch.tensor(0.5))
        self.register_buffer("rejected", torch.tensor(False))

    def forward(self, y: Tensor) -> Tensor:
        new = y + self.dt * slope(y)
        error = (self.dt * slope(new) - self.dt * slope(y)).abs().max()
        if error <= 0.5:
            y = new
            self.rejected.fill_(False)
            self.dt.mul_(1.2)
        else:
            self.rejected.fill_(True)
            self.dt.mul_(0.5)
        return y.clone()


def energy(x: Tensor) -> Tensor:
    return 0.5 * (x * x).sum()


def chains() -> InputSets:
    return [
        (torch.tensor([1.0, 0.0]), torch.tensor([0.1, 0.2]), torch.tensor(0.5)),
        (torch.tensor([0.1, 0.0]), torch.tensor([2.0, 2.0]), torch.tensor(0.9)),
    ]


@REPORTS.of(GITHUB + "soran-ghaderi/torchebm/issues/7", chains)
def metropolis(x: Tensor, noise: Tensor, u: Tensor) -> Tensor:
    proposal = x + noise
    if torch.log(u) < energy(x) - energy(proposal):
        x = proposal
    return x


@REPORTS.of(GITHUB + "pyro-ppl/pyro/pull/622", chains)
def metropolis_with_flag(x: Tensor, noise: Tensor, u: Tensor) -> tuple[Tensor, bool]:
    proposal = x + noise
    accepted = False
    if u < torch.exp(energy(x) - energy(proposal)):
        x = proposal
        accepted = True
    return x, accepted


@REPORTS.of(GITHUB + "netket/netket/pull/278", chains, state=attributes("accepted", "total"))
class AcceptanceRate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.accepted = 0
        self.total = 0

    def forward(self, x: Tensor, noise: Tensor, u: Tensor) -> Tensor:
        proposal = x + noise
        self.total += 1
        if energy(proposal) < energy(x) - torch.log(u):
            self.accepted += 1
            return proposal
        return x


@REPORTS.of(GITHUB + "ludwigwinkler/pytorch_MCMC/pull/13", chains)
def leapfrog_with_correction(x: Tensor, noise: Tensor, u: Tensor) -> dict[str, Tensor]:
    position, momentum = x, noise
    for _ in range(3):
        momentum = momentum - 0.1 * position
        position = position + 0.2 * momentum
        momentum = momentum - 0.1 * position
    change = energy(x) + energy(noise) - energy(position) - energy(momentum)
    if change < torch.log(u):
        position = x
        momentum = noise
    return {"x": position, "p": momentum, "change": change}


@REPORTS.of(GITHUB + "PGM-Lab/InferPy/issues/83", chains)
def walks(x: Tensor, noise: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    accepted = torch.zeros(())
    for step in range(3):
        proposal = x + noise * (1 - step)
        if energy(proposal) - energy(x) < -torch.log(u):
            x = proposal
            accepted = accepted + 1
    return x, accepted / 3


@REPORTS.of(GITHUB + "pytorch/pytorch/pull/8824", starts)
def backtracks(x: Tensor) -> tuple[Tensor, Tensor]:
    step = torch.tensor(1.0)
    value, gradient = (x**4).sum(), 4 * x**3
    for _ in range(4):
        new = ((x - step * gradient) ** 4).sum()
        if new <= value - 1e-4 * step * (gradient * gradient).sum():
            break
        step = step * 0.5
    return x - step * gradient, step


@REPORTS.of(GITHUB + "lululxvi/deepxde/pull/1790", starts)
def curvature_update(x: Tensor) -> tuple[Tensor, int]:
    """The history of L-BFGS grows where the curvature is positive."""
    history: list[Tensor] = []
    y = x.sin()
    if y.dot(x) > 0.1:
        history.append(y)
    direction = -x
    for old in history:
        direction = direction - old * old.dot(x)
    return direction, len(history)


@REPORTS.of(GITHUB + "deepinv/deepinv/pull/86", starts)
def fixed_point(x: Tensor) -> tuple[Tensor, int]:
    z = torch.zeros(2)
    for iteration in range(12):
        new = torch.tanh(0.5 * z + x)
        if (new - z).norm() < 1e-2:
            return new, iteration
        z = new
    return z, 12


@REPORTS.of(GITHUB + "locuslab/deq/issues/28", starts)
def keeps_the_best_iterate(x: Tensor) -> dict[str, Any]:
    z = best = torch.zeros(2)
    lowest = torch.tensor(float("inf"))
    for _ in range(4):
        new = torch.cos(z + x)
        residual = (new - z).norm()
        if residual < lowest:
            lowest, best = residual, new
        z = new
    return {"best": best, "lowest": lowest}


def marginals() -> InputSets:
    return [(drawn(3, 3),), (drawn(3, 3, seed=2) * 0.1,)]


@REPORTS.of(GITHUB + "EleutherAI/gpt-neox/pull/1370", marginals)
def sinkhorn(cost: Tensor) -> Tensor:
    kernel = torch.exp(cost)
    d0, d1 = torch.ones(3), torch.ones(3)
    error, previous = torch.tensor(1e9), d1
    while error > 1e-3:
        d0 = 1 / (3 * (kernel * d1).sum(1))
        d1 = 1 / (3 * (kernel * d0[:, None]).sum(0))
        error = (previous - d1).abs().mean()
        previous = d1
    return d1 * kernel * d0[:, None]


@REPORTS.of(GITHUB + "PythonOT/POT/pull/291", marginals)
def sinkhorn_with_message(cost: Tensor) -> Tensor:
    kernel, u, v = torch.exp(-cost), torch.ones(3), torch.ones(3)
    for _ in range(6):
        before = u
        u = 1 / (kernel @ v)
        v = 1 / (kernel.T @ u)
        if (u - before).norm() < 0.02:
            break
    else:
        print("did not converge")
    return u[:, None] * kernel * v


@REPORTS.of(GITHUB + "PythonOT/POT/issues/421", marginals)
def power_iteration(m: Tensor) -> tuple[Tensor, Tensor]:
    m = m @ m.T
    v = torch.ones(3) / 3**0.5
    value = v @ m @ v
    for _ in range(20):
        w = m @ v
        norm = w.norm()
        if norm < 1e-8:
            break
        v = w / norm
        new = v @ m @ v
        if (new - value).abs() < 1e-3:
            value = new
            break
        value = new
    return value, v


def rays() -> InputSets:
    return [(torch.rand(4, 5, generator=torch.Generator().manual_seed(1)),), (torch.ones(4, 5),)]


@REPORTS.of(GITHUB + "nerfstudio-project/nerfacc/pull/42", rays)
def marches_until_opaque(alpha: Tensor) -> tuple[Tensor, Tensor]:
    left, color = torch.ones(4), torch.zeros(4)
    for sample in range(5):
        weight = left * alpha[:, sample]
        color = color + weight * sample
        left = left * (1 - alpha[:, sample])
        if (left < 1e-4).all():
            break
    return color, left


@REPORTS.of(GITHUB + "kwea123/ngp_pl/issues/4", rays)
class DensityGrid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.zeros(5))
        self.register_buffer("occupied", torch.ones(5, dtype=torch.bool))

    def forward(self, alpha: Tensor) -> Tensor:
        self.grid.copy_(torch.maximum(self.grid * 0.95, alpha.amax(0)))
        if self.grid.mean() > 0.9:
            self.occupied.copy_(self.grid > 0.97)
        return alpha * self.occupied


def sigmas() -> InputSets:
    return [(drawn(4), torch.tensor(0.5)), (drawn(4), torch.tensor(0.0))]


@REPORTS.of(GITHUB + "huggingface/diffusers/pull/7120", sigmas)
def ancestral_step(x: Tensor, sigma: Tensor) -> Tensor:
    denoised = x / (1 + sigma**2)
    if sigma == 0:
        return denoised
    direction = (x - denoised) / sigma
    return x - direction * sigma * 0.5 + torch.ones(4) * sigma * 0.1


@REPORTS.of(GITHUB + "huggingface/diffusers/pull/4347", sigmas, state=attributes("step_index"))
class IndexForTimestep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("timesteps", torch.tensor([0.5, 0.25, 0.0]))
        self.step_index: int | None = None

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        if self.step_index is None:
            found = (self.timesteps == sigma).nonzero()
            self.step_index = found[1 if len(found) > 1 else 0].item()  # type: ignore[assignment]
        return x * self.timesteps[self.step_index]


@REPORTS.of(GITHUB + "huggingface/diffusers/pull/1132", sigmas, state=attributes("outputs"))
class Multistep(nn.Module):
    """A multistep solver: a shift register of outputs, and the first order where sigma ends."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor | None] = [None, None]

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        self.outputs = [self.outputs[1], x]
        if self.outputs[0] is None or sigma < 1e-3:
            return x * (1 - sigma)
        return x * (1 - sigma) + 0.5 * (x - self.outputs[0])
