"""Gradients where the forward writes an input: a moving average, statistics, a codebook."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from fusepass.inductor.faults.recomputed_writes import save_what_is_written


class Model(nn.Module):
    ema: Tensor
    count: Tensor

    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(1.0, 5.0))
        self.register_buffer("ema", torch.ones(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def no_grad(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.ema.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x * m.ema * m.w


def detached(m: Any, x: Tensor) -> Tensor:
    m.ema.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x * m.ema * m.w


def copied(m: Any, x: Tensor) -> Tensor:
    m.ema.copy_(0.9 * m.ema + 0.1 * x.detach().mean(0))
    return x * m.ema * m.w


def data(m: Any, x: Tensor) -> Tensor:
    m.ema.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x * m.ema * m.w


def of_view(m: Any, x: Tensor) -> Tensor:
    m.ema.view(2, 2)[0].mul_(0.9)
    return x * m.ema.flip(0).exp() * m.w


def counted(m: Any, x: Tensor) -> Tensor:
    m.count.add_(1)
    m.ema.lerp_(x.detach().var(0), 1.0 / m.count)
    return (x - m.ema) / (m.ema + m.count).sqrt() * m.w


def codebook(m: Any, x: Tensor) -> Tensor:
    at = (x.detach().unsqueeze(-1) - m.ema).abs().argmin(-1)
    with torch.no_grad():
        m.ema.index_add_(0, at.flatten(), x.flatten(), alpha=0.1)
    return x * m.ema[at] * m.w


def in_arm(m: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        m.ema.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    else:
        m.ema.mul_(0.5)
    return x * m.ema * m.w


def norm(m: Any, x: Tensor) -> Tensor:
    m.ema.add_(x.detach().square().sum(0))
    return x / m.ema.sqrt() * m.w


def cloned(m: Any, x: Tensor) -> Tensor:
    old = m.ema.clone()
    m.ema.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x * old * (m.ema - old).exp() * m.w


def of_weight(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.w.mul_(0.9)
    return (x * m.w).sin() * m.w


def unread(m: Any, x: Tensor) -> Tensor:
    m.ema.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x.sin() * m.w


def read_only(m: Any, x: Tensor) -> Tensor:
    return x * (m.ema * 0.9) * m.w


SAVED = [
    *(no_grad, detached, copied, data, of_view, counted, codebook, in_arm, norm, cloned, of_weight),
]


def steps(model: nn.Module, run: Callable[[Tensor], Tensor]) -> list[Any]:
    """Three steps: results, gradients, and what the buffers hold."""
    found: list[Any] = []
    for seed in range(3):
        given = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        x = (given.abs() * (-1) ** seed).requires_grad_()
        made = run(x)
        made.square().sum().backward()
        grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        found += [made.detach(), x.grad, *grads, *(b.clone() for b in model.buffers())]
    return found


@pytest.mark.parametrize("codegen", ["inductor", "eager-decomposed"])
@pytest.mark.parametrize("run", [*SAVED, unread, read_only])
def test_gradients(run: Callable[[Any, Tensor], Tensor], codegen: str) -> None:
    model = Model(run)
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend="fusepass", options={"codegen": codegen})
    torch.testing.assert_close(steps(other, compiled), steps(model, model))


def read_first(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
    made = h * 0.5
    h.mul_(0.5).add_(1)
    return made.sin() * w * h.exp()


def added_to(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
    made = (h * 0.5).sin()
    h.add_(w)
    return made * w * made


def buffer(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
    made = b * 0.9
    b.copy_(made + h)
    return made * w * h


def part(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
    made = (b * 0.9).sin()
    b[1:].add_(h[1:])
    return made * w * h + b


def twice(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
    b.mul_(0.9)
    made = h * b.clone() * w
    b.add_(h.detach())
    return made * b.clone() * w


@pytest.mark.parametrize("codegen", ["inductor", "eager-decomposed"])
@pytest.mark.parametrize("run", [read_first, added_to, buffer, part, twice])
def test_writes_that_need_gradients(run: Callable[..., Tensor], codegen: str) -> None:
    """AOTAutograd makes most of these when the forward graph has run."""

    def results(run: Callable[..., Tensor]) -> list[Any]:
        x = torch.linspace(-1, 1, 6).requires_grad_()
        w = torch.linspace(1, 2, 6).requires_grad_()
        h, b = x * 1, torch.linspace(0.5, 1, 6)
        made = run(h, w, b)
        return [made.detach(), *torch.autograd.grad(made.sum(), [x, w]), h.detach(), b.detach()]

    compiled = torch.compile(run, backend="fusepass", options={"codegen": codegen})
    torch.testing.assert_close(results(compiled), results(run))


def sine(h: Tensor, w: Tensor) -> Tensor:
    made = h.sin()
    h.mul_(2)
    return made * w


def constant(h: Tensor, w: Tensor) -> Tensor:
    made = h.detach() * w
    h.mul_(2)
    return made


@pytest.mark.parametrize("run", [sine, constant])
def test_an_error_of_eager_stays_one(run: Callable[..., Tensor]) -> None:
    """A value is written that eager has saved."""
    for one in (run, torch.compile(run, backend="fusepass")):
        w = torch.ones(6, requires_grad=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            one(torch.linspace(-1, 1, 6, requires_grad=True) * 1, w).sum().backward()


def test_checkpoint() -> None:
    """What the program computes again reads the input again, as in eager; the rest does not."""

    def run(m: Any, x: Tensor) -> Tensor:
        m.ema.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        made: Tensor = checkpoint(lambda v: (v * m.ema).sin() * m.w, x, use_reentrant=False)
        return made * m.ema

    model = Model(run)
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend="fusepass")
    torch.testing.assert_close(steps(other, compiled), steps(model, model))


# --- On a joint graph ------------------------------------------------------------------------------


def joint(write: bool, *, backward: bool = False, recomputed: bool = False) -> fx.GraphModule:
    def run(primals_1: Tensor, primals_2: Tensor, tangents_1: Tensor) -> Any:
        ema = primals_1.view(2, 2) * 0.9
        made = primals_2 * ema
        grad = tangents_1 * ema
        if write:
            primals_1.copy_(ema.view(4))
        return made, grad

    gm = make_fx(run)(torch.ones(4), torch.ones(2, 2), torch.ones(2, 2))
    for node in gm.graph.nodes:
        if "copy_" in str(node.target) and backward:
            node.meta["partitioner_tag"] = "must_be_in_backward"
        if node.name == "mul" and recomputed:
            node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
    return gm


@pytest.mark.parametrize(
    ("how", "saved"),
    [
        ({"write": True}, ["mul"]),
        ({"write": False}, []),
        ({"write": True, "backward": True}, []),
        ({"write": True, "recomputed": True}, []),
    ],
)
def test_marks(how: dict[str, bool], saved: list[str]) -> None:
    gm = joint(**how)
    found = save_what_is_written(gm.graph)
    marked = [
        node.name
        for node in gm.graph.nodes
        if node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE
    ]
    assert marked == saved
    assert [one.rule for one in found] == ["recomputed_write"] * bool(saved)


def test_without_backward() -> None:
    """A graph that is not differentiated saves nothing."""
    gm = joint(True)
    for node in gm.graph.find_nodes(op="placeholder"):
        node.target = node.target.replace("tangents", "primals")
    assert save_what_is_written(gm.graph) == []
