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


def compiled_for(module: nn.Module, codegen: str, backend: str = "fusepass") -> Any:
    if backend == "inductor":
        return torch.compile(module, backend=backend, options={"fallback_random": True})
    options = {"codegen": codegen}
    if codegen == "inductor":
        options |= {"inductor.fallback_random": True}
    return torch.compile(module, backend=backend, options=options)


def train(
    calls: list[tuple[nn.Module, Any]],
    make: Callable[[Any], torch.optim.Optimizer],
    *,
    steps: int,
    autocast: bool = False,
) -> Tensor:
    """The loss of each (module, how it is called) at each step, from the same draws.

    Gradients are None in all where they are in the first.
    """
    optimizers = [make(module.parameters()) for module, _ in calls]
    losses, dropped = torch.empty(len(calls), steps, dtype=torch.float64), 0
    for step in range(steps):
        args = batch(step)
        drawn = torch.get_rng_state()
        for i, (module, call) in enumerate(calls):
            torch.set_rng_state(drawn)
            optimizers[i].zero_grad()
            dtype = module.threshold.dtype
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast and dtype == torch.float32):
                loss = call(args[0].to(dtype), *args[1:])
            loss.backward()
            optimizers[i].step()
            losses[i, step] = loss.item()
            assert nones(module) == nones(calls[0][0]), (step, i)
        dropped += len(nones(calls[0][0]))
    assert dropped > steps
    return losses


def in_one_graph(compiled: Any) -> bool:
    report = fusepass.last_report(compiled).to_dict()
    return (report["graphs"], report["graph_breaks"]) == (1, [])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("make", [adamw, sgd])
def test_same_curve_op_by_op(make: Any, autocast: bool) -> None:
    with fresh_compiler():
        eager, module = Net(), Net()
        compiled = compiled_for(module, "eager")
        calls = [(eager, eager), (module, compiled)]
        wanted, got = train(calls, make, steps=60, autocast=autocast)
        assert in_one_graph(compiled)
    assert torch.equal(wanted, got)


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("make", [adamw, sgd])
def test_curve_through_inductor_within_the_error_rule(make: Any, autocast: bool) -> None:
    losses = []
    for backend in ("inductor", "fusepass"):  # torch gives up on the code under both at once
        with fresh_compiler():
            exact, eager, module = Net().double(), Net(), Net()
            compiled = compiled_for(module, "inductor", backend)
            calls = [(exact, exact), (eager, eager), (module, compiled)]
            losses.append(train(calls, make, steps=200, autocast=autocast))
            assert backend == "inductor" or in_one_graph(compiled)
    errors = [(got[1:] - got[0]).square().mean(1).sqrt().tolist() for got in losses]
    (of_eager, of_plain), (_, ours) = errors
    rms = losses[0][0].square().mean().sqrt().item()
    half_ulp = rms * torch.finfo(torch.float32).eps / 2
    assert ours <= max(2 * of_eager, 1.1 * of_plain, half_ulp), (ours, of_eager, of_plain)


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
@pytest.mark.parametrize(
    "codegen", ["eager", "eager-decomposed", pytest.param("inductor", marks=pytest.mark.slow)]
)
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
