"""Training with layers that are dropped: the same gradients, the same curve, on two ranks, too."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import fusepass

from ..support.check import fresh_compiler


class Net(nn.Module):
    """Layers dropped at random, a learned threshold, and a head for some of the rows."""

    def __init__(self, drawn: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.drawn = drawn
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(3)]
        )
        self.threshold = nn.Parameter(torch.tensor(6.0))
        self.scale = nn.Parameter(torch.tensor(0.9))
        self.head, self.aside = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, draws: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            if (torch.rand([]) if self.drawn else draws[i]) < 0.6:
                x = x + layer(x)
        if x.norm() > self.threshold:
            x = x * self.scale
        loss = F.cross_entropy(self.head(x), y)
        if mask.any():
            loss = loss + 0.1 * (self.aside(x) * mask[:, None]).square().mean()
        return loss


def batch(seed: int) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    x = torch.randn(6, 8) * (1.5 if seed % 2 else 0.5)
    return x, torch.randint(0, 4, (6,)), torch.rand(6) > 0.8, torch.rand(3)


def adamw(leaves: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(leaves, lr=1e-3, weight_decay=0.1)


def sgd(leaves: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(leaves, lr=1e-2, momentum=0.9, weight_decay=0.1)


def nones(module: nn.Module) -> list[str]:
    return [name for name, leaf in module.named_parameters() if leaf.grad is None]


def train(
    make: Callable[[Any], torch.optim.Optimizer], codegen: str, *, autocast: bool, steps: int
) -> list[tuple[float, float]]:
    """The losses of both, step by step; gradients are None in both where they are in one."""
    eager = Net()
    module = copy.deepcopy(eager)
    options = {"codegen": codegen}
    if codegen == "inductor":
        options |= {"inductor.fallback_random": True}
    compiled = torch.compile(module, backend="fusepass", options=options)
    optimizers = make(eager.parameters()), make(module.parameters())
    losses, dropped = [], 0
    for step in range(steps):
        args, found = batch(step), []
        drawn = torch.get_rng_state()
        for call, optimizer in zip((eager, compiled), optimizers, strict=True):
            torch.set_rng_state(drawn)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = call(*args)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        assert nones(eager) == nones(module), step
        dropped += len(nones(eager))
        losses.append((found[0], found[1]))
    assert dropped > steps
    report = fusepass.last_report(compiled).to_dict()
    assert (report["graphs"], report["graph_breaks"]) == (1, [])
    return losses


@pytest.mark.sampled(2)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("make", [adamw, sgd])
def test_same_curve_op_by_op(make: Any, autocast: bool) -> None:
    with fresh_compiler():
        losses = train(make, "eager", autocast=autocast, steps=60)
    assert all(wanted == got for wanted, got in losses)


@pytest.mark.slow
@pytest.mark.parametrize("make", [adamw, sgd])
def test_same_curve_through_inductor(make: Any) -> None:
    with fresh_compiler():
        losses = train(make, "inductor", autocast=False, steps=200)
    assert all(got == pytest.approx(wanted, rel=1e-4) for wanted, got in losses)


# --- Two ranks ------------------------------------------------------------------------------------


def on_rank(rank: int, folder: str, codegen: str, find: bool) -> None:
    """Train eager and compiled on one of two ranks, which take different arms, and compare."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/ranks", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    eager = Net(drawn=False)
    eager.threshold.requires_grad_(find)  # it never has a gradient
    module = copy.deepcopy(eager)
    compiled = torch.compile(module, backend="fusepass", options={"codegen": codegen})
    both = [DistributedDataParallel(one, find_unused_parameters=find) for one in (eager, compiled)]
    optimizers = adamw(eager.parameters()), adamw(module.parameters())
    for step in range(6):
        x, y, mask, draws = batch(2 * step + (rank if find else 1))
        if not find:  # each parameter has a gradient on each rank, or eager raises
            mask, draws = torch.ones_like(mask), torch.zeros_like(draws)
        for call, optimizer in zip(both, optimizers, strict=True):
            optimizer.zero_grad()
            call(x, y, mask, draws).backward()
        assert nones(eager) == nones(module), (rank, step)
        for one, other in zip(eager.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
        for optimizer in optimizers:
            optimizer.step()
    report = fusepass.last_report(compiled).to_dict()
    assert report["graph_breaks"] == []
    dist.destroy_process_group()


@pytest.mark.parametrize("find", [True, False], ids=["unused_found", "all_used"])
@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed"])
def test_on_two_ranks(tmp_path: Path, codegen: str, find: bool) -> None:
    module = ".".join([*Path(__file__).parts[-4:-1], Path(__file__).stem])
    path = f"import sys; sys.path.append({str(Path(__file__).parents[3])!r})"
    called = f"{path}; from {module} import on_rank"
    given = f"{str(tmp_path)!r}, {codegen!r}, {find}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", f"{called}; on_rank({rank}, {given})"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=240)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
