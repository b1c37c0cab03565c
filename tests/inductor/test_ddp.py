"""Modules inside DistributedDataParallel, where torch cuts graphs and hands on the pieces."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import fusepass
from fusepass.report.decision import Station

_WIDTH = 512  # a layer of that width fills a bucket of 1 MiB, the smallest there is
_EAGER = {"codegen": "eager"}


@pytest.fixture(autouse=True)
def _one_rank(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "ranks"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))


class _AcrossPieces(_Layers):
    """A branch whose arms are in other pieces than its test, a number, a line, a changed buffer."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        scale = hidden.abs().max().item()
        second = self.second(hidden)
        if hidden.sum() > 0:
            second = second.relu()
            self.seen.add_(1)
        print(scale)  # noqa: T201 - a program of a user
        out: Tensor = self.third(second / scale)
        return out


class _DearArms(_Layers):
    """A branch that becomes torch.cond, with layers on either side."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if hidden.sum() > 0:
            for _ in range(30):
                hidden = torch.tanh(hidden @ self.second.weight)
        else:
            for _ in range(30):
                hidden = torch.softmax(hidden @ self.second.weight, -1)
        out: Tensor = self.third(self.second(hidden))
        return out


def _steps(module: _Layers, *, compiled: Any = None) -> list[Any]:
    """What is seen of three steps of training: results, gradients, buffers, numbers printed."""
    parallel = DistributedDataParallel(module if compiled is None else compiled, bucket_cap_mb=1)
    seen: list[Any] = []
    for sign in (1.0, -1.0, 1.0):
        x = sign * torch.linspace(-1, 2, 4 * _WIDTH).reshape(4, _WIDTH)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            out = parallel(x)
        out.square().mean().backward()
        gradients = [parameter.grad for parameter in module.parameters()]
        numbers = [float(word) for word in printed.getvalue().split()]
        seen.append([out.detach(), gradients, module.seen.clone(), numbers])
        module.zero_grad()
    return seen


def _treatments(compiled: Any) -> set[tuple[str, str]]:
    report = fusepass.last_report(compiled)
    assert not report.graph_breaks
    return {(d.rule, d.treatment) for d in report.decisions if d.station is Station.CAPTURE}


@pytest.mark.parametrize("options", [_EAGER, {}], ids=["eager", "inductor"])
def test_what_is_captured_may_lie_in_several_pieces(options: dict[str, Any]) -> None:
    module = _AcrossPieces()
    expected = _steps(module)
    module.seen.zero_()
    compiled = torch.compile(module, backend="fusepass", options=options)
    torch.testing.assert_close(_steps(module, compiled=compiled), expected)
    assert _treatments(compiled) == {("item", "device"), ("branch", "where"), ("print", "late")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [_EAGER, {}], ids=["eager", "inductor"])
def test_cond_between_layers(options: dict[str, Any]) -> None:
    module = _DearArms()
    compiled = torch.compile(module, backend="fusepass", options=options)
    torch.testing.assert_close(_steps(module, compiled=compiled), _steps(module))
    assert _treatments(compiled) == {("branch", "cond")}


def test_the_report_adds_up_the_pieces() -> None:
    module = _AcrossPieces()
    inside, alone = (torch.compile(module, backend="fusepass", options=_EAGER) for _ in range(2))
    _steps(module, compiled=inside)
    pieces = fusepass.last_report(inside)
    fusepass.reset()
    torch._dynamo.reset()
    with contextlib.redirect_stdout(io.StringIO()):
        alone(torch.ones(4, _WIDTH))
    whole = fusepass.last_report(alone)
    assert pieces.operations == whole.operations
    assert [d.rule for d in pieces.decisions].count("codegen") == 1
