# ruff: noqa: B007  # a loop variable that is read behind the loop
"""Seven iterative programs, each as several people would write it, with inputs of three calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Solver(NamedTuple):
    """A program that iterates, and the arguments of each call."""

    make: Callable[[], Callable[..., Any]]
    calls: tuple[tuple[Any, ...], ...]


SOLVERS: dict[str, Solver] = {}


def solver(*calls: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Register a function, or a module's class, under its name."""

    def register(program: Any) -> Any:
        make = program if isinstance(program, type) else lambda: program
        SOLVERS[program.__name__] = Solver(make, calls)
        return program

    return register


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _positive(n: int, seed: int) -> Tensor:
    a = _random(n, n, seed=seed)
    return a @ a.T + n * 0.1 * torch.eye(n)


def _diagonal(*values: float) -> Tensor:
    return torch.diag(torch.tensor(values))


# Power iteration
MATRICES = ((_positive(8, 0),), (_positive(8, 5),), (_diagonal(9.0, *[1.0] * 7),))


@solver(*MATRICES)
def power_with_infinite_error(a: Tensor) -> Any:
    v = torch.ones(a.shape[0], device=a.device) / a.shape[0] ** 0.5
    prev = float("inf")
    err = float("inf")
    it = 0
    while err > 1e-3 and it < 500:
        w = a @ v
        lam = w.norm()
        v = w / lam
        err = abs(lam.item() - prev)
        prev = lam.item()
        it += 1
    return v, lam, it


@solver(*MATRICES)
def power_until_allclose(a: Tensor) -> Any:
    b = torch.ones(a.size(0), device=a.device)
    for i in range(1000):
        b_new = torch.mv(a, b)
        b_new = b_new / torch.linalg.vector_norm(b_new)
        if torch.allclose(b, b_new, atol=1e-5):
            break
        b = b_new
    return torch.dot(b, a @ b), b, i


@solver(*MATRICES)
def power_without_end(a: Tensor) -> Any:
    v = F.normalize(torch.ones(a.shape[0], dtype=a.dtype, device=a.device), dim=0)
    n = 0
    while True:
        u = F.normalize(a @ v, dim=0)
        diff = (u - v).norm()
        v = u
        n += 1
        if diff < 1e-5 or n >= 300:
            break
    return v @ a @ v, n


@solver(*MATRICES)
def power_without_an_old_value(a: Tensor) -> Any:
    x = torch.ones(a.shape[0], device=a.device) / 3
    lam_old = None
    for k in range(200):
        y = a @ x
        lam = (x @ y) / (x @ x)
        x = y / y.norm()
        if lam_old is not None and (lam - lam_old).abs() < 1e-5 * lam.abs():
            break
        lam_old = lam
    return lam, x, k


@solver(*MATRICES)
class PowerBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("u", torch.ones(8))
        self.register_buffer("rounds", torch.zeros((), dtype=torch.long))
        self.tol, self.max_iter = 1e-5, 400

    def forward(self, a: Tensor) -> Any:
        u = self.u
        delta = torch.full((), math.inf, device=a.device)
        it = 0
        while delta > self.tol and it < self.max_iter:
            w = a @ u
            w = w / w.norm()
            delta = (w - u).abs().max()
            u = w
            it += 1
        self.u.copy_(u)
        self.rounds += it
        return torch.dot(u, a @ u)


# Sinkhorn
COSTS = ((_random(6, 6, seed=1).abs(), 0.5), (_random(6, 6, seed=2).abs(), 0.5))
COSTS += ((torch.zeros(6, 6), 0.5),)


@solver(*COSTS)
def sinkhorn_in_logs(c: Tensor, eps: float) -> Any:
    n, m = c.shape
    mu = torch.full((n,), 1.0 / n, device=c.device)
    nu = torch.full((m,), 1.0 / m, device=c.device)
    f, g = torch.zeros_like(mu), torch.zeros_like(nu)
    err = 1.0
    it = 0
    while err > 1e-4 and it < 1000:
        f_old = f
        f = eps * (mu.log() - torch.logsumexp((g[None, :] - c) / eps, dim=1))
        g = eps * (nu.log() - torch.logsumexp((f[:, None] - c) / eps, dim=0))
        err = (f - f_old).abs().max()
        it = it + 1
    pi = torch.exp((f[:, None] + g[None, :] - c) / eps)
    return pi, (pi * c).sum(), it


@solver(*COSTS)
def sinkhorn_with_read_error(c: Tensor, reg: float) -> Any:
    k = torch.exp(-c / reg)
    r = torch.ones(c.shape[0], device=c.device) / c.shape[0]
    p = k / k.sum()
    u = torch.zeros(c.shape[0], device=c.device)
    n = 0
    while torch.max(torch.abs(u - p.sum(1))).item() > 1e-5:
        u = p.sum(1)
        p = p * (r / u).reshape(-1, 1)
        p = p * (r / p.sum(0)).reshape(1, -1)
        n += 1
    return p, n


@solver(*COSTS)
class Sinkhorn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eps, self.max_iter, self.thresh = 0.5, 100, 1e-3

    def m(self, c: Tensor, u: Tensor, v: Tensor) -> Tensor:
        return (-c + u.unsqueeze(-1) + v.unsqueeze(-2)) / self.eps

    def forward(self, c: Tensor, _: float) -> Any:
        mu = torch.empty(1, c.shape[-2], device=c.device).fill_(1.0 / c.shape[-2]).squeeze()
        nu = torch.empty(1, c.shape[-1], device=c.device).fill_(1.0 / c.shape[-1]).squeeze()
        u, v = torch.zeros_like(mu), torch.zeros_like(nu)
        rounds = 0
        for _i in range(self.max_iter):
            u1 = u
            u = self.eps * (torch.log(mu + 1e-8) - torch.logsumexp(self.m(c, u, v), dim=-1)) + u
            lse = torch.logsumexp(self.m(c, u, v).transpose(-2, -1), dim=-1)
            v = self.eps * (torch.log(nu + 1e-8) - lse) + v
            err = (u - u1).abs().sum(-1).mean()
            rounds += 1
            if err.item() < self.thresh:
                break
        pi = torch.exp(self.m(c, u, v))
        return torch.sum(pi * c, dim=(-2, -1)), pi, rounds


@solver(*COSTS)
def sinkhorn_or_nan(c: Tensor, reg: float) -> Any:
    p = torch.softmax(-c / reg, dim=1)
    converged = False
    for it in range(200):
        p = p / p.sum(dim=0, keepdim=True)
        p = p / p.sum(dim=1, keepdim=True)
        if (p.sum(0) - 1).abs().max() < 1e-5:
            converged = True
            break
    else:
        p = torch.full_like(p, float("nan"))
    return p, converged, it


# Bisection
ENDS = tuple((torch.tensor(a), torch.tensor(b)) for a, b in ((0.0, 2.0), (1.0, 5.0), (-1.0, 1.5)))
ROWS = (
    (torch.tensor([0.0, 1, 1.5]), torch.tensor([2.0, 5, 9])),
    (torch.tensor([0.0, 0, 0]), torch.tensor([2.0, 3, 4])),
    (torch.tensor([1.0, 1, 1]), torch.tensor([1.0, 1, 1])),
)


def polynomial(x: Tensor) -> Tensor:
    return x * x * x - x - 2


@solver(*ENDS)
def bisect_with_exact_hit(a: Tensor, b: Tensor) -> Any:
    fa = polynomial(a)
    n = 0
    while (b - a) / 2 > 1e-5:
        m = (a + b) / 2
        fm = polynomial(m)
        if fm == 0:
            return m, n
        if fa * fm < 0:
            b = m
        else:
            a = m
            fa = fm
        n += 1
    return (a + b) / 2, n


@solver(*ENDS)
def bisect_python_floats(lo: Tensor, hi: Tensor) -> Any:
    low, high = lo.item(), hi.item()
    steps = 0
    while high - low > 1e-6:
        mid = 0.5 * (low + high)
        if polynomial(torch.tensor(mid, device=lo.device)) > 0:
            high = mid
        else:
            low = mid
        steps += 1
    return 0.5 * (low + high), steps


@solver(*ROWS)
def bisect_rows(lo: Tensor, hi: Tensor) -> Any:
    lo, hi = lo.clone(), hi.clone()
    active = torch.ones_like(lo, dtype=torch.bool)
    nfev = 0
    while active.any():
        mid = 0.5 * (lo + hi)
        fm = polynomial(mid)
        nfev += 1
        lo = torch.where(active & (fm < 0), mid, lo)
        hi = torch.where(active & (fm >= 0), mid, hi)
        active = active & ((hi - lo) > 1e-5)
    return 0.5 * (lo + hi), nfev


@solver((_random(10, seed=1),), (_random(10, seed=4) * 3,), (_random(10, seed=6),))
def bisect_threshold(z: Tensor) -> Any:
    low = z.max() - 1
    width = z.max() - (1 / z.numel()) - low
    k = 0
    while width > 1e-6:
        width = width / 2
        tau = low + width
        p = torch.clamp(z - tau, min=0)
        if p.sum() >= 1:
            low = tau
        k += 1
    return p / p.sum(), k


# Adaptive steps of an ODE
STATES = ((torch.tensor([1.0, 0.0]), 2.0), (torch.tensor([0.5, 2.0]), 2.0))
STATES += ((torch.tensor([0.0, 0.0]), 2.0),)


def oscillator(t: Any, y: Tensor) -> Tensor:
    return torch.stack([y[1], -y[0] - 0.1 * y[1] + 0.1 * t])


@solver(*STATES)
def ode_with_tensor_time(y: Tensor, end: float) -> Any:
    t = torch.zeros((), device=y.device)
    h = torch.full((), 0.1, device=y.device)
    nfev = accepted = 0
    while t < end:
        h = torch.minimum(h, end - t)
        k1 = oscillator(t, y)
        k2 = oscillator(t + h, y + h * k1)
        nfev += 2
        err = (h * (k2 - k1) / 2).norm()
        if err < 1e-3:
            t = t + h
            y = y + h * (k1 + k2) / 2
            accepted += 1
        h = h * torch.clamp(0.9 * (1e-3 / (err + 1e-12)) ** 0.5, 0.2, 5.0)
    return y, t, nfev, accepted


@solver(*STATES)
def ode_with_python_time(y: Tensor, end: float) -> Any:
    t, dt = 0.0, 0.05
    accepted, rejected = 0, 0
    while t < end:
        if t + dt > end:
            dt = end - t
        k1 = oscillator(t, y)
        y_new = y + dt * oscillator(t + dt / 2, y + dt / 2 * k1)
        err = torch.max(torch.abs(y_new - (y + dt * k1))).item()
        if err <= 1e-3:
            t += dt
            y = y_new
            accepted += 1
        else:
            rejected += 1
        dt = dt * min(2.0, max(0.2, 0.9 * math.sqrt(1e-3 / max(err, 1e-10))))
    return y, accepted, rejected


@solver(*STATES)
def ode_with_inner_loop(y: Tensor, end: float) -> Any:
    t = torch.zeros((), device=y.device)
    dt = torch.full((), 0.4, device=y.device)
    fevals = 0
    while t < end:
        while True:
            step = torch.minimum(dt, end - t)
            k1 = oscillator(t, y)
            k2 = oscillator(t + step, y + step * k1)
            fevals += 2
            err = (step * (k2 - k1)).abs().max() / 2
            if err < 1e-3:
                break
            dt = step * 0.5
        y = y + step * (k1 + k2) / 2
        t = t + step
        if err < 2e-4:
            dt = step * 2
    return y, fevals


# Kalman filter with a gate
TRACKS = ((_random(40, 2, seed=3),), (_random(40, 2, seed=4) * 4,), (torch.zeros(40, 2),))


def inverse(s: Tensor) -> Tensor:
    """The inverse of a 2x2 matrix, in few roundings."""
    det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
    return torch.stack([s[1, 1], -s[0, 1], -s[1, 0], s[0, 0]]).reshape(2, 2) / det


class Constants(NamedTuple):
    f: Tensor
    h: Tensor
    q: Tensor
    r: Tensor


def constants(device: Any) -> Constants:
    f = torch.eye(4, device=device)
    f[0, 2] = f[1, 3] = 1
    q, r = 0.01 * torch.eye(4, device=device), 0.5 * torch.eye(2, device=device)
    return Constants(f, torch.eye(4, device=device)[:2], q, r)


@solver(*TRACKS)
def kalman_until_lost(zs: Tensor) -> Any:
    c = constants(zs.device)
    x, p = torch.zeros(4, device=zs.device), torch.eye(4, device=zs.device)
    misses = 0
    for t in range(zs.shape[0]):
        x = c.f @ x
        p = c.f @ p @ c.f.T + c.q
        r = zs[t] - c.h @ x
        s_inv = inverse(c.h @ p @ c.h.T + c.r)
        if (r @ s_inv @ r).item() < 9.21:
            k = p @ c.h.T @ s_inv
            x = x + k @ r
            p = p - k @ c.h @ p
            misses = 0
        else:
            misses += 1
        if misses > 5:
            break
    return x, p, t, misses


@solver(*TRACKS)
def kalman_while_certain(zs: Tensor) -> Any:
    c = constants(zs.device)
    x, p = torch.zeros(4, device=zs.device), torch.eye(4, device=zs.device)
    t = gated = 0
    while torch.trace(p) < 100 and t < 40:
        x = c.f @ x
        p = c.f @ p @ c.f.T + c.q
        r = zs[t] - c.h @ x
        s_inv = inverse(c.h @ p @ c.h.T + c.r)
        if r @ s_inv @ r < 5.99:
            k = p @ c.h.T @ s_inv
            x = x + k @ r
            p = (torch.eye(4, device=zs.device) - k @ c.h) @ p
        else:
            gated += 1
        t += 1
    return x, p, gated, t


@solver(*TRACKS)
class Kalman(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, value in constants("cpu")._asdict().items():
            self.register_buffer(name, value)
        self.register_buffer("x", torch.zeros(4))
        self.register_buffer("p", torch.eye(4))
        self.register_buffer("rejected", torch.zeros((), dtype=torch.long))

    def forward(self, zs: Tensor) -> Any:
        out = torch.zeros(zs.shape[0], 4, device=zs.device)
        x, p = self.x, self.p
        lost = 0
        for t in range(zs.shape[0]):
            x = self.f @ x
            p = self.f @ p @ self.f.T + self.q
            r = zs[t] - self.h @ x
            s_inv = inverse(self.h @ p @ self.h.T + self.r)
            if r @ s_inv @ r > 9.21:
                self.rejected += 1
                lost += 1
                if lost >= 5:
                    break
            else:
                lost = 0
                k = p @ self.h.T @ s_inv
                x = x + k @ r
                p = p - k @ self.h @ p
            out[t] = x
        self.x.copy_(x)
        self.p.copy_(p)
        return out, t, lost


# Greedy decoding
PROMPTS = (
    (torch.tensor([1, 2, 5]), _random(3, 16, seed=9)),
    (torch.tensor([4, 4, 4]), _random(3, 16, seed=10)),
    (torch.tensor([7, 8, 9]), _random(3, 16, seed=11) * 3),
)


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.emb, self.rnn = nn.Embedding(12, 16), nn.Linear(32, 16)
            self.out, self.eos = nn.Linear(16, 12), 3

    def step(self, tok: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.rnn(torch.cat([self.emb(tok), h], dim=-1)))


@solver(*PROMPTS)
class DecodeInRange(_Decoder):
    @torch.no_grad()
    def forward(self, tok: Tensor, h: Tensor) -> Any:
        out = torch.zeros(tok.shape[0], 60, dtype=torch.long, device=tok.device)
        finished = torch.zeros(tok.shape[0], dtype=torch.bool, device=tok.device)
        for t in range(60):
            h = self.step(tok, h)
            tok = self.out(h).argmax(-1).masked_fill(finished, 0)
            out[:, t] = tok
            finished |= tok == self.eos
            if finished.all():
                break
        return out, t + 1


@solver(*PROMPTS)
class DecodeWhile(_Decoder):
    def forward(self, tok: Tensor, h: Tensor) -> Any:
        with torch.no_grad():
            length = 0
            done = torch.zeros_like(tok).bool()
            lengths = torch.zeros_like(tok)
            out = torch.full((tok.size(0), 50), -1, dtype=torch.long, device=tok.device)
            while not done.all() and length < 50:
                h = self.step(tok, h)
                tok = torch.where(done, tok, self.out(h).argmax(dim=-1))
                out[:, length] = tok
                lengths += (~done).long()
                done = done | (tok == self.eos)
                length += 1
            return out, lengths, length


@solver(*PROMPTS)
class DecodeScored(_Decoder):
    @torch.inference_mode()
    def forward(self, tok: Tensor, h: Tensor) -> Any:
        n = 0
        tok, h = tok[:1], h[:1]
        score = 0.0
        out = torch.zeros(40, dtype=torch.long, device=tok.device)
        while n < 40:
            h = self.step(tok, h)
            best, tok = torch.log_softmax(self.out(h), -1).max(-1)
            score += best.item()
            out[n] = tok[0]
            n += 1
            if tok.item() == self.eos:
                break
        return out, score, n


@solver(*PROMPTS)
class DecodeIntoSequence(_Decoder):
    @torch.no_grad()
    def forward(self, tok: Tensor, h: Tensor) -> Any:
        seqs = torch.full((tok.shape[0], 41), 0, dtype=torch.long, device=tok.device)
        seqs[:, 0] = tok
        unfinished = torch.ones_like(tok)
        cur_len = 1
        while cur_len < 41:
            h = self.step(seqs[:, cur_len - 1], h)
            nxt = torch.argmax(self.out(h), dim=-1) * unfinished
            seqs[:, cur_len] = nxt
            unfinished = unfinished.mul(nxt.ne(self.eos).long())
            cur_len += 1
            if unfinished.max() == 0:
                break
        return seqs, cur_len


# Conjugate gradients
SYSTEMS = (
    (_positive(10, 0), _random(10, seed=1)),
    (_positive(10, 3), _random(10, seed=4)),
    (_positive(10, 3), torch.zeros(10)),
)


@solver(*SYSTEMS)
def cg_with_read_norm(a: Tensor, b: Tensor) -> Any:
    x = torch.zeros_like(b)
    r = b - a @ x
    p = r.clone()
    rs = r @ r
    it = 0
    while rs.sqrt().item() > 1e-3 and it < 100:
        ap = a @ p
        alpha = rs / (p @ ap)
        x = x + alpha * p
        r = r - alpha * ap
        rs_new = r @ r
        p = r + (rs_new / rs) * p
        rs = rs_new
        it += 1
    return x, it


@solver(*SYSTEMS)
def cg_in_place(a: Tensor, b: Tensor) -> Any:
    x = torch.zeros_like(b)
    r = b.clone()
    p = r.clone()
    rs_old = torch.dot(r, r)
    for i in range(b.numel() * 10):
        ap = a.mv(p)
        alpha = rs_old / p.dot(ap)
        x.add_(alpha * p)
        r.sub_(alpha * ap)
        rs_new = torch.dot(r, r)
        if torch.sqrt(rs_new) < 1e-3:
            break
        p = r + (rs_new / rs_old) * p
        rs_old = rs_new
    return x, i


@solver(*SYSTEMS)
def cg_returning_from_inside(a: Tensor, b: Tensor) -> Any:
    x = torch.zeros_like(b)
    r = p = b - a @ x
    rr = r.dot(r)
    for k in range(50):
        if rr.sqrt() <= 1e-3:
            return x, {"iters": k, "converged": True}
        ap = a @ p
        alpha = rr / p.dot(ap)
        x = x + alpha * p
        r = r - alpha * ap
        rr_new = r.dot(r)
        p = r + rr_new / rr * p
        rr = rr_new
    return x, {"iters": 50, "converged": False}


@solver(*SYSTEMS)
def cg_with_line_search(a: Tensor, b: Tensor) -> Any:
    x = torch.zeros_like(b)
    f = 0.5 * x @ a @ x - b @ x
    g = a @ x - b
    d = -g
    nfev, it = 1, 0
    while g.norm() > 1e-2 and it < 60:
        t = 1.0
        while True:
            xn = x + t * d
            fn = 0.5 * xn @ a @ xn - b @ xn
            nfev += 1
            if fn <= f + 1e-4 * t * (g @ d) or t < 1e-6:
                break
            t *= 0.5
        gn = a @ xn - b
        beta = torch.clamp(gn @ (gn - g) / (g @ g), min=0)
        x, f = xn, fn
        d = -gn + beta * d
        g = gn
        it += 1
    return x, it, nfev


@solver(*SYSTEMS)
def cg_without_a_direction(a: Tensor, b: Tensor) -> Any:
    x = torch.zeros_like(b)
    r = b
    p = None
    rho_prev = None
    it = 0
    while True:
        rho = r @ r
        if rho.sqrt() < 1e-3:
            break
        if p is None:
            p = r
        else:
            p = r + (rho / rho_prev) * p
        q = a @ p
        alpha = rho / (p @ q)
        x = x + alpha * p
        r = r - alpha * q
        rho_prev = rho
        it += 1
        if it >= 100:
            break
    return x, it


@solver(*SYSTEMS)
class ConjugateGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tol = 1e-4
        self.register_buffer("last_rounds", torch.zeros(1))

    def forward(self, a: Tensor, b: Tensor) -> Any:
        x = torch.zeros_like(b)
        r = b - a @ x
        z = r / torch.diagonal(a)
        p = z
        rz = torch.sum(r * z)
        res = r.norm()
        k = 0
        while (res > self.tol * b.norm()) and k < 5 * b.shape[0]:
            ap = a @ p
            alpha = rz / torch.sum(p * ap)
            x = x + alpha * p
            r = r - alpha * ap
            z = r / torch.diagonal(a)
            rz_new = torch.sum(r * z)
            p = z + rz_new / rz * p
            rz = rz_new
            res = r.norm()
            k += 1
        self.last_rounds.fill_(k)
        return x, res, k
