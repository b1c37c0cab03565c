"""Loops that tensors end: solvers, decoders, filters, as people write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import rows
from ..support.program import FREE, IN_GRAPH, WHERE, Family, InputSets, cond, keep

FAMILY = Family("tensor_loops")


def drawn(
    *shapes: tuple[int, ...], scales: tuple[float, ...] = (1.0, 3.0)
) -> Callable[[int], InputSets]:
    """Input sets of random tensors, one set for each scale."""

    def make(seed: int) -> InputSets:
        generator = torch.Generator().manual_seed(seed)
        return [
            tuple(torch.rand(shape, generator=generator) * scale + 0.1 for shape in shapes)
            for scale in scales
        ]

    return make


def systems(seed: int) -> InputSets:
    """Symmetric positive definite systems."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, generator=generator)
    matrix = root @ root.T + torch.eye(6)
    return [(matrix, torch.randn(6, generator=generator)), (matrix * 3, torch.zeros(6))]


HALVED = rows([8.0, 1.0], [0.5, 0.1])


@FAMILY.program(systems, IN_GRAPH)
def power_iteration(a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    v = b + 1
    for it in range(100):
        w = a @ v
        w = w / w.norm()
        err = (w - v).norm()
        v = w
        if err < 1e-3:
            break
    return v, it


@FAMILY.program(drawn((4, 5)), IN_GRAPH)
def sinkhorn(cost: Tensor) -> tuple[Tensor, int]:
    n, m = cost.shape
    u, v = torch.zeros(n), torch.zeros(m)
    for i in range(200):
        before = u
        u = 0.1 * (-torch.log(torch.tensor(4.0)) - torch.logsumexp((v[None] - cost) / 0.1, 1))
        v = 0.1 * (-torch.log(torch.tensor(5.0)) - torch.logsumexp((u[:, None] - cost) / 0.1, 0))
        if (u - before).abs().max() < 1e-3:
            break
    return torch.exp((u[:, None] + v[None] - cost) / 0.1), i


@FAMILY.program(drawn((4,)), IN_GRAPH, one_sided=True)
def bisection(c: Tensor) -> tuple[Tensor, int]:
    low, high, n = torch.zeros_like(c), torch.ones_like(c) * 4, 0
    while (high - low).max() > 1e-4:
        middle = 0.5 * (low + high)
        below = middle**3 < c
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        n += 1
    return 0.5 * (low + high), n


@FAMILY.program(drawn(()), WHERE, IN_GRAPH)
def scalar_bisection(c: Tensor) -> Tensor:
    low, high = torch.zeros(()), torch.full((), 10.0)
    for _ in range(100):
        middle = (low + high) / 2
        if middle * middle < c:
            low = middle
        else:
            high = middle
        if high - low < 1e-5:
            break
    return middle


@FAMILY.program(drawn((3,)), IN_GRAPH, WHERE, one_sided=True)
def adaptive_step(y: Tensor) -> tuple[Tensor, Tensor, int]:
    t, dt, steps = torch.zeros(()), torch.full((), 0.5), 0
    y = y * 1
    while t < 1.0:
        dt = torch.minimum(dt, 1.0 - t)
        slope = -y
        euler = y + dt * slope
        heun = y + 0.5 * dt * (slope - euler)
        err = (heun - euler).norm()
        if err <= 1e-2:
            y = heun
            t = t + dt
        dt = dt * (0.9 * (1e-2 / (err + 1e-9)).sqrt()).clamp(0.2, 5.0)
        steps += 1
    return y, t, steps


@FAMILY.program(drawn((3,)), WHERE, extra=True)
def adaptive_step_in_python(y: Tensor) -> tuple[Tensor, int]:
    t, dt, steps = 0.0, 0.5, 0
    y = y * 1
    while t < 1.0 and steps < 200:
        slope = -y
        euler = y + dt * slope
        heun = y + 0.5 * dt * (slope - euler)
        if (heun - euler).norm() < 1e-2:
            t = t + dt
            y = heun
            dt = dt * 1.5
        else:
            dt = dt * 0.5
        steps += 1
    return y, steps


@FAMILY.program(drawn((40, 2), scales=(2.0, 8.0)), FREE)
def gated_filter(seen: Tensor) -> tuple[Tensor, Tensor, int]:
    x, p, used = torch.zeros(2), torch.eye(2), 0
    for k in range(seen.shape[0]):
        p = p + 0.01 * torch.eye(2)
        y = seen[k] - x
        s = p + 0.1 * torch.eye(2)
        if (y * y).sum() / s.trace() < 4.0:
            gain = p / s.trace()
            x = x + gain @ y
            p = p - gain @ p
            used += 1
    return x, p, used


@FAMILY.program(drawn((6, 6), (9, 6)), IN_GRAPH)
def greedy_decoding(w: Tensor, table: Tensor) -> tuple[Tensor, int]:
    state, token = torch.zeros(2, 6), torch.tensor([3, 4])
    out, done = torch.full((2, 40), 7), torch.zeros(2, dtype=torch.bool)
    for t in range(40):
        state = torch.sin(state @ w * 3 + table[token])
        token = (state @ table.T).argmax(-1)
        token = torch.where(done, 7, token)
        out[:, t] = token
        done = done | (token == 7) | (state.sum(-1) > 3)
        if done.all():
            break
    return out, t


@FAMILY.program(drawn((6, 6), (9, 6)), cond("partial_op") | WHERE)
def greedy_decoding_with_cat(w: Tensor, table: Tensor) -> Tensor:
    state = torch.zeros(1, 6)
    tokens = torch.tensor([3])
    while True:
        state = torch.sin(state @ w * 3 + table[tokens[-1:]])
        tokens = torch.cat([tokens, (state @ table.T).argmax(-1)])
        if state.sum() > 3 or len(tokens) > 12:
            break
    return tokens


@FAMILY.program(systems, IN_GRAPH | WHERE)
def conjugate_gradient(a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    x = torch.zeros_like(b)
    r = b - a @ x
    p, rs, it = r, r @ r, 0
    while rs.sqrt() > 1e-4 and it < 200:
        ap = a @ p
        alpha = rs / (p @ ap)
        x = x + alpha * p
        r = r - alpha * ap
        new = r @ r
        p = r + (new / rs) * p
        rs = new
        it += 1
    return x, it


@FAMILY.program(systems, IN_GRAPH)
def conjugate_gradient_in_place(a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    x, r = torch.zeros_like(b), b + 0.5
    p = r.clone()
    rs = torch.dot(r, r)
    for it in range(100):
        ap = a @ p
        alpha = rs / torch.dot(p, ap)
        x += alpha * p
        r -= alpha * ap
        new = torch.dot(r, r)
        if torch.sqrt(new) < 1e-3:
            break
        p = r + (new / rs) * p
        rs = new
    return x, it


@FAMILY.program(drawn((4,)), IN_GRAPH)
def newton_with_return(x: Tensor) -> tuple[Tensor, int]:
    for i in range(60):
        new = x - (x**3 - 2) / (3 * x**2)
        if (new - x).abs().max() < 1e-4:
            return new, i
        x = new
    return x + 0, 60


@FAMILY.program(systems, IN_GRAPH | WHERE, one_sided=True)
def jacobi(a: Tensor, b: Tensor) -> tuple[Tensor, int, Tensor]:
    diagonal = torch.diag(a) * 9
    rest = a - torch.diag(torch.diag(a))
    x, it, err = torch.zeros_like(b), 0, torch.tensor(float("inf"))
    while err > 1e-4 and it < 500:
        new = (b - rest @ x) / diagonal
        err = (new - x).abs().max()
        x = new
        it += 1
    return x, it, err


@FAMILY.program(drawn((4,)), IN_GRAPH)
def error_begins_as_a_number(x: Tensor) -> tuple[Tensor, int]:
    err, it = float("inf"), 0
    while err > 1e-2 and it < 300:
        new = x * 0.9
        err = (new - x).abs().max()
        x = new
        it += 1
    return x, it


@FAMILY.program(drawn((30, 2)), IN_GRAPH)
def k_means(points: Tensor) -> tuple[Tensor, Tensor, int]:
    centers = points[:3] * 1
    for it in range(60):
        labels = torch.cdist(points, centers).argmin(1)
        one = F.one_hot(labels, 3).to(points.dtype)
        new = (one.T @ points) / one.sum(0).clamp(min=1)[:, None]
        shift = (new - centers).norm()
        centers = new
        if shift <= 1e-4:
            break
    return centers, labels, it


@FAMILY.program(drawn((3,)), IN_GRAPH)
def wegstein_with_a_flag(x: Tensor) -> tuple[Tensor, int]:
    old, new = x, torch.cos(x)
    done, n = False, 0
    while not done:
        slope = (torch.cos(new) - torch.cos(old)) / (new - old + 1e-9)
        q = slope / (slope - 1)
        next_ = q * new + (1 - q) * torch.cos(new)
        if (next_ - new).abs().max() < 1e-3 or n > 50:
            done = True
        old, new = new, next_
        n += 1
    return new, n


@FAMILY.program(drawn((3,), scales=(9.0, 0.5)), IN_GRAPH, FREE, one_sided=True)
def nested_while(x: Tensor) -> tuple[Tensor, int]:
    n, x = 0, x * 1
    while x.abs().max() > 1:
        y = x
        while y.norm() > 2:
            y = y * 0.9
        x = y * 0.5
        n += 1
    return x * 1, n


@FAMILY.program(drawn((3,)), keep("random_op"))
def rejection_sampling(x: Tensor) -> Tensor:
    while True:
        drawn_ = torch.randn_like(x)
        if drawn_.norm() < 1.5:
            break
    return drawn_ + x


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), IN_GRAPH)
def tensor_written_in_place(x: Tensor) -> Tensor:
    while x.sum() > 1:
        x.mul_(0.5)
    return x * 1


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), IN_GRAPH)
def written_by_another_name(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.zeros(10)
    part = out[2:5]
    while x.norm() > 1:
        x = x * 0.9
        out += 1
    return x * 1, part, out


@FAMILY.program(drawn((3,), scales=(0.6, 2.0)), IN_GRAPH)
def reads_the_row_before(x: Tensor) -> Tensor:
    out = torch.zeros(50, 3)
    for t in range(1, 50):
        out[t] = out[t - 1] + x
        if out[t].sum() > 5:
            break
    return out


@FAMILY.program(drawn((4,), scales=(8.0, 0.05)), IN_GRAPH, WHERE)
def returns_in_the_loop(x: Tensor) -> Tensor:
    for _ in range(60):
        x = x * 0.9
        if x.norm() < 0.1:
            return x * 2
        if x[0] > 3:
            x = x - 1
    return x + 1


@FAMILY.program(drawn((4,), scales=(8.0, 90000.0)), IN_GRAPH)
def else_behind_the_loop(x: Tensor) -> Tensor:
    for _ in range(60):
        x = x * 0.9
        if x.norm() < 0.1:
            break
    else:
        x = x + 100
    return x * 1


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), IN_GRAPH, WHERE)
def continues(x: Tensor) -> tuple[Tensor, int]:
    n = 0
    while x.norm() > 0.5:
        n += 1
        x = x * 0.8
        if x[0] > 1:
            continue
        x = x - 0.01
    return x * 1, n


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), IN_GRAPH, extra=True, one_sided=True)
def numbers_of_python(x: Tensor) -> tuple[Tensor, float, int]:
    rate, k = 1.0, 0
    while x.norm() > 0.3:
        if (x * x).sum().item() < 20.5:
            x = x - rate * 0.1 * x
        else:
            rate = rate * 0.75
            x = x * 0.9
        k += 1
    return x * 1, rate, k


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), IN_GRAPH)
def number_divides(x: Tensor) -> tuple[Tensor, float]:
    n = 0
    while x.norm() > 1:
        x = x * (1 - 1 / (n + 2))
        n += 1
    return x * 1, 1.0 / (n + 1)


@FAMILY.program(drawn((4,), (4,), scales=(8.0, 0.1)), IN_GRAPH, one_sided=True)
def swaps(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    while (x - y).abs().max() > 1e-2:
        x, y = (x + y) / 2, (x + 2 * y) / 3
    return x * 1, y * 1


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), IN_GRAPH, IN_GRAPH)
def returns_an_input(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    while y.sum() > 8:
        y = y / 2
    while x.sum() > 1:
        x = x / 2
    return x, y


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), keep("side_effect"))
def prints_in_the_loop(x: Tensor) -> Tensor:
    while x.sum() > 1:
        x = x / 2
        print("sum", x.sum())
    return x * 1


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), keep("untraceable"))
def appends_in_the_loop(x: Tensor) -> tuple[Tensor, int]:
    seen = []
    while x.sum() > 1:
        x = x / 2
        seen.append(x)
    return x * 1, len(seen)


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), FREE)
def changes_its_dtype(x: Tensor) -> Tensor:
    while x.sum() > 1:
        x = (x / 2).double()
    return x * 1


@FAMILY.program(drawn((4,), scales=(8.0, 1.0)), IN_GRAPH)
def begins_as_none(x: Tensor) -> Tensor:
    before = None
    while True:
        x = x * 0.5
        if before is not None and (before - x).abs().max() < 1e-2:
            break
        before = x
    return x


@FAMILY.program(drawn((4,), scales=(8.0, 0.1)), FREE, one_sided=True)
class CountsInABuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.rounds = 0

    def forward(self, x: Tensor) -> Tensor:
        while x.norm() > 1:
            x = torch.tanh(self.layer(x)) * 0.4
            self.rounds += 1
        return x * 1
