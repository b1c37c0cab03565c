"""Searches, filters, geometry and environments that accept, stop or repair by what they compute."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from .report import InputSets, Reports, attributes, drawn

REPORTS = Reports()
GITHUB = "https://github.com/"
log = logging.getLogger("outside")


@REPORTS.of(
    GITHUB + "cornellius-gp/gpytorch/pull/1586",
    lambda: [
        (torch.eye(3),),
        (torch.ones(3, 3),),
        (torch.eye(3) * float("nan"),),
    ],
)
def psd_safe_cholesky(matrix: Tensor) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(matrix)
    if not torch.any(info):
        return factor
    isnan = torch.isnan(matrix)
    if isnan.any():
        raise ValueError(f"cholesky: {isnan.sum().item()} of {matrix.numel()} elements are NaN.")
    fixed = matrix.clone()
    previous = 0.0
    for i in range(3):
        jitter = 1e-6 * (10**i)
        added = ((info > 0) * (jitter - previous)).unsqueeze(-1).expand(3)
        fixed.diagonal(dim1=-1, dim2=-2).add_(added)
        previous = jitter
        warnings.warn(f"A not p.d., added jitter of {jitter:.1e} to the diagonal", RuntimeWarning)
        factor, info = torch.linalg.cholesky_ex(fixed)
        if not torch.any(info):
            return factor
    raise RuntimeError(
        f"Matrix not positive definite after repeatedly adding jitter up to {jitter:.1e}."
    )


@REPORTS.of(
    GITHUB + "pyro-ppl/pyro",
    lambda: [(torch.tensor(v),) for v in ([1.0, 1, 1, 1], [9.0, 0.1, 0.1, 0.1])],
)
def resamples_particles(weights: Tensor) -> tuple[Tensor, Tensor]:
    weights = weights / weights.sum()
    particles = torch.arange(4.0)
    effective = 1.0 / (weights**2).sum()
    if effective < 2:
        places = (torch.arange(4) + 0.5) / 4
        index = torch.searchsorted(weights.cumsum(0), places).clamp(max=3)
        particles = particles[index]
        weights = torch.full_like(weights, 0.25)
    return particles, weights


@REPORTS.of(
    GITHUB + "TorchSim/torch-sim",
    lambda: [(drawn(3, seed=s), drawn(3, seed=s + 9)) for s in range(5)],
    state=attributes("dt", "alpha", "n_pos"),
)
class FIRE(nn.Module):
    """The minimiser with Python state: step size, mixing and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.dt, self.alpha, self.n_pos = 0.1, 0.1, 0

    def forward(self, v: Tensor, f: Tensor) -> Tensor:
        power = (f * v).sum()
        if power > 0:
            v = (1 - self.alpha) * v + self.alpha * v.norm() * f / f.norm()
            if self.n_pos > 1:
                self.dt = min(self.dt * 1.1, 1.0)
                self.alpha *= 0.99
            self.n_pos += 1
        else:
            v = torch.zeros_like(v)
            self.dt *= 0.5
            self.alpha = 0.1
            self.n_pos = 0
        return v + self.dt * f


@REPORTS.of(
    GITHUB + "TorchSim/torch-sim",
    lambda: [(drawn(3, seed=s), drawn(3, seed=s + 9)) for s in range(5)],
)
class FIREOnTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("dt", torch.tensor(0.1))
        self.register_buffer("alpha", torch.tensor(0.1))
        self.register_buffer("n_pos", torch.tensor(0))

    def forward(self, v: Tensor, f: Tensor) -> Tensor:
        power = (f * v).sum()
        if power > 0:
            v = (1 - self.alpha) * v + self.alpha * v.norm() * f / f.norm()
            if self.n_pos > 1:
                self.dt.copy_(torch.clamp(self.dt * 1.1, max=1.0))
                self.alpha.mul_(0.99)
            self.n_pos += 1
        else:
            v = torch.zeros_like(v)
            self.dt.mul_(0.5)
            self.alpha.fill_(0.1)
            self.n_pos.zero_()
        return v + self.dt * f


@REPORTS.of(
    GITHUB + "facebookresearch/theseus",
    lambda: [(drawn(3, seed=s),) for s in range(5)],
    state=attributes("lam"),
)
class LevenbergMarquardt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lam = 1e-2

    def forward(self, x: Tensor) -> Tensor:
        jac = torch.diag(2 * x) + 0.1
        residual = x**2 - 1
        step = torch.linalg.solve(jac.T @ jac + self.lam * torch.eye(3), jac.T @ residual)
        new = x - step
        if ((new**2 - 1) ** 2).sum() < (residual**2).sum():
            x = new
            self.lam /= 10
        else:
            self.lam *= 10
        return x * 1.0


@REPORTS.of(GITHUB + "rfeinman/pytorch-minimize", lambda: [(drawn(3, seed=s),) for s in range(5)])
class TrustRegion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("radius", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        g = x.sin()
        step = -g
        norm = step.norm()
        if norm > self.radius:
            step = step * self.radius / norm
        rho = (x.cos().sum() - (x + step).cos().sum()) / (g * step).sum()
        if rho < 0.25:
            self.radius *= 0.25
        elif rho > 0.75 and norm >= self.radius:
            self.radius.copy_(torch.clamp(2 * self.radius, max=2.0))
        if rho > 0.1:
            x = x + step
        return x


@REPORTS.of(GITHUB + "meta-pytorch/botorch", lambda: [(torch.tensor(v),) for v in (0.3, 2.0, 5.0)])
def golden_section(center: Tensor) -> Tensor:
    def f(t: Tensor) -> Tensor:
        return (t - center) ** 2

    ratio = (5**0.5 - 1) / 2
    a, b = torch.tensor(0.0), torch.tensor(4.0)
    for _ in range(6):
        c, d = b - ratio * (b - a), a + ratio * (b - a)
        if f(c) < f(d):
            b = d
        else:
            a = c
    return (a + b) / 2


@REPORTS.of(GITHUB + "rtqichen/torchdiffeq", lambda: [(drawn(3) * s,) for s in (1e-7, 1.0, 30.0)])
def initial_step(y: Tensor) -> Tensor:
    f0 = -y * y
    scale = 1e-6 + y.abs() * 1e-3
    d0, d1 = (y / scale).norm(), (f0 / scale).norm()
    if d0 < 1e-5 or d1 < 1e-5:
        h0 = torch.tensor(1e-6)
    else:
        h0 = 0.01 * d0 / d1
    f1 = -((y + h0 * f0) ** 2)
    d2 = ((f1 - f0) / scale).norm() / h0
    if d1 <= 1e-15 and d2 <= 1e-15:
        h1 = torch.max(torch.tensor(1e-6), h0 * 1e-3)
    else:
        h1 = (0.01 / max(d1, d2)) ** (1.0 / 6)
    return torch.min(100 * h0, h1)


@REPORTS.of(GITHUB + "rtqichen/torchdiffeq", lambda: [(torch.tensor(v),) for v in (0.0, 0.5, 3.0)])
def optimal_step(ratio: Tensor) -> Tensor:
    last = torch.tensor(0.1)
    if ratio == 0:
        return last * 10.0
    dfactor = torch.tensor(0.2)
    if ratio < 1:
        dfactor = torch.ones(())
    factor = torch.min(torch.tensor(10.0), torch.max(0.9 / ratio**0.2, dfactor))
    return last * factor


def carts() -> InputSets:
    return [
        (torch.tensor([0.0, 0.1, 0.05, 0.0]), torch.tensor(1)),
        (torch.tensor([2.5, 0.1, 0.05, 0.0]), torch.tensor(0)),
        (torch.tensor([0.0, 0.1, 0.3, 0.0]), torch.tensor(0)),
    ]


@REPORTS.of(GITHUB + "Farama-Foundation/Gymnasium", carts, state=attributes("beyond"))
class CartPole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beyond: int | None = None

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, float, bool]:
        x, v, theta, omega = state.unbind()
        force = 10.0 if action == 1 else -10.0
        temp = (force + 0.05 * omega**2 * theta.sin()) / 1.1
        alpha = (9.8 * theta.sin() - theta.cos() * temp) / 0.7
        x, v = x + 0.02 * v, v + 0.02 * temp
        theta, omega = theta + 0.02 * omega, omega + 0.02 * alpha
        terminated = bool(x < -2.4 or x > 2.4 or theta < -0.2 or theta > 0.2)
        if not terminated:
            reward = 1.0
        elif self.beyond is None:
            self.beyond = 0
            reward = 1.0
        else:
            reward = 0.0
        return torch.stack((x, v, theta, omega)), reward, terminated


@REPORTS.of(
    GITHUB + "rtqichen/torchdiffeq",
    lambda: [(torch.tensor(a), torch.tensor(b)) for a, b in ((0.1, -5.0), (3.0, 1.0), (0.0, 0.0))],
)
def bounces(y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(4):
        v = v - 0.98
        y = y + 0.1 * v
        if y < 0:
            y = -y
            v = -0.9 * v
    return y, v


@REPORTS.of(
    GITHUB + "STVIR/pysot",
    lambda: [(torch.tensor([s, 0.1, -0.2]),) for s in (0.95, 0.5, 0.2)],
    state=attributes("lost"),
)
class Tracker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("template", torch.zeros(3))
        self.lost = 0

    def forward(self, scores: Tensor) -> dict[str, Any]:
        best = scores.max()
        status = "tracked"
        if best > 0.9:
            self.template = 0.1 * scores + 0.9 * self.template
            self.lost = 0
        elif best < 0.3:
            status = "lost"
            self.lost += 1
        return {"status": status, "score": best * self.template.sum()}


@REPORTS.of(
    GITHUB + "VainF/Torch-Pruning",
    lambda: [(torch.tensor([0.1, 0.9, 0.2]),), (torch.tensor([0.1, 0.2, 0.3]),)],
)
def keeps_one_at_least(scores: Tensor) -> Tensor:
    mask = (scores > 0.5).float()
    if mask.sum() == 0:
        mask[scores.argmax()] = 1.0
    return scores * mask


@REPORTS.of(
    GITHUB + "shenoynikhil/ETFlow/issues/11",
    lambda: [(drawn(3, 3, seed=s),) for s in range(4)],
    grad=True,
)
def kabsch(h: Tensor) -> Tensor:
    u, _, vt = torch.linalg.svd(h)
    v = vt.T
    rotation = v @ u.T
    if torch.det(rotation) < 0:
        v = torch.cat((v[:, :2], -v[:, 2:]), 1)
        rotation = v @ u.T
    return rotation


@REPORTS.of(
    GITHUB + "shenoynikhil/ETFlow/issues/11", lambda: [(drawn(3, 3, seed=s),) for s in range(4)]
)
def kabsch_in_place(h: Tensor) -> Tensor:
    u, _, vt = torch.linalg.svd(h)
    v = vt.T
    if torch.det(v @ u.T) < 0:
        v[:, -1] *= -1
    return v @ u.T


def vectors() -> InputSets:
    return [(torch.tensor([0.1, 0.2, 0.3]),), (torch.zeros(3),), (torch.tensor([1e-9, 0, 0]),)]


@REPORTS.of(GITHUB + "kornia/kornia", vectors, grad=True)
def rodrigues(v: Tensor) -> Tensor:
    theta = v.norm()
    zero = torch.zeros(())
    k = torch.stack((zero, -v[2], v[1], v[2], zero, -v[0], -v[1], v[0], zero)).view(3, 3)
    if theta < 1e-6:
        return torch.eye(3) + k
    k = k / theta
    return torch.eye(3) + theta.sin() * k + (1 - theta.cos()) * (k @ k)


@REPORTS.of(GITHUB + "kornia/kornia", vectors, grad=True)
def rodrigues_by_square_root(v: Tensor) -> Tensor:
    squared = (v * v).sum()
    if squared < 1e-12:
        return v * 1.0
    theta = squared.sqrt()
    return v * theta.sin() / theta


@REPORTS.of(
    GITHUB + "facebookresearch/pytorch3d",
    lambda: [
        (torch.tensor([1.0, 0, 0, 0]), torch.tensor(q))
        for q in ([0.0, 1, 0, 0], [1.0, 0, 0, 0], [-1.0, 0, 0, 0], [-0.6, 0.8, 0, 0])
    ],
    grad=True,
)
def slerp(a: Tensor, b: Tensor) -> Tensor:
    dot = (a * b).sum()
    if dot < 0:
        b = -b
        dot = -dot
    if dot > 0.9995:
        out = a + 0.3 * (b - a)
        return out / out.norm()
    theta = torch.acos(dot)
    return ((0.7 * theta).sin() * a + (0.3 * theta).sin() * b) / theta.sin()


@REPORTS.of(
    GITHUB + "kornia/kornia",
    lambda: [(drawn(3), drawn(3, seed=1)), (torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 1, 0]))],
)
def ray_meets_plane(direction: Tensor, normal: Tensor) -> Tensor | None:
    denominator = direction.dot(normal)
    if torch.abs(denominator) < 1e-6:
        return None
    t = (normal.sum() / denominator).clamp(min=0)
    return direction * t


@REPORTS.of(
    GITHUB + "dimforge/nalgebra/issues/1343", lambda: [(drawn(3, 3, seed=s),) for s in range(3)]
)
def fixes_signs(m: Tensor) -> Tensor:
    _, vectors = torch.linalg.eigh(m + m.T)
    columns = [c * -1 if c.sum() < 0 else c for c in vectors.unbind(-1)]
    return torch.stack(columns, -1)


@REPORTS.of(GITHUB + "meta-pytorch/torchtune", lambda: [(torch.tensor(v),) for v in (0, 5, 8)])
def cache_overflow(position: Tensor) -> Tensor:
    if position + 3 > 8:
        raise ValueError(f"cache of 8 is too small for {position.item()} + 3")
    return torch.arange(3) + position


@REPORTS.of(
    GITHUB + "pytorch/tutorials",
    lambda: [(drawn(4, seed=s), torch.tensor(s % 2 == 0)) for s in range(4)],
)
class TeacherForcing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(1, 2)
        self.out = nn.Linear(2, 1)

    def forward(self, targets: Tensor, unused: Tensor) -> Tensor:
        h, y = torch.zeros(1, 2), targets[:1, None]
        outputs = []
        for t in range(3):
            h = self.cell(y, h)
            out = self.out(h)
            outputs.append(out)
            y = targets[t + 1 : t + 2, None] if torch.rand(1).item() < 0.5 else out
        return torch.cat(outputs)
