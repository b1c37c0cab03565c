"""Sums of a product and a matrix that are taken apart again, and sums that must not be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config
from torch.nn import functional as F

import fusepass
from fusepass.fusion import kernel_gate
from fusepass.inductor import passes
from fusepass.numerics import rms_error
from fusepass.options import Options
from fusepass.patterns import gemm_region
from fusepass.tune import Candidate, Choice, Problem

ROWS, WIDTH = 136, 32
Program = Callable[..., Tensor]


class Mlp(nn.Module):
    """A SwiGLU MLP, the gradient of whose input is a sum of two products."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the tuner was asked for; it answers that the sum is best apart, if that can be had."""
    found: list[str] = []

    def choose(problem: Problem, options: Options, candidates: Sequence[Candidate]) -> Choice:
        names = [one.name for one in candidates]
        found.extend(names)
        best = gemm_region.SUM_APART if gemm_region.SUM_APART in names else "inductor"
        return Choice(best, {}, "forced", "in a test")

    monkeypatch.setattr(gemm_region, "choose", choose)
    monkeypatch.setattr(passes, "_on_cuda", lambda node: True)
    monkeypatch.setattr(kernel_gate, "gate_reason", lambda *given: None)
    monkeypatch.setattr(gemm_region.kernel, "refuses", lambda *given: None)
    return found


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The library's products and the sums in each graph that Inductor lowers."""
    from torch._inductor.graph import GraphLowering

    seen: list[str] = []
    run = GraphLowering.run

    def noted(self: GraphLowering, *given: Tensor) -> object:
        names = [str(node.target) for node in self.module.graph.nodes]  # type: ignore[union-attr]
        seen.extend(names)
        return run(self, *given)

    monkeypatch.setattr(GraphLowering, "run", noted)
    return seen


def both(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return x @ w + y @ v


def reversed_(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return torch.sin(y) + x @ w


@pytest.mark.parametrize("program", [both, reversed_])
def test_a_sum_is_taken_apart(program: Program, asked: list[str], graphs: list[str]) -> None:
    given = [torch.randn(ROWS, ROWS).bfloat16() for _ in range(4)]
    torch._dynamo.reset()
    with config.patch(force_disable_caches=True), torch.no_grad():
        compiled = torch.compile(program, backend="fusepass")
        got, eager = compiled(*given), program(*given)
        exact = program(*(one.double() for one in given))
    assert gemm_region.SUM_APART in asked
    assert graphs
    assert not any("addmm" in name for name in graphs)
    reasons = [one for one in fusepass.last_report(compiled).decisions if one.outcome == "applied"]
    assert any(gemm_region.SUM_APART in str(one.reason) for one in reasons)
    assert rms_error(got, exact) <= 1.01 * rms_error(eager, exact)


def test_the_gradient_of_a_gated_pair(asked: list[str], graphs: list[str]) -> None:
    module, x = Mlp().bfloat16(), torch.randn(ROWS, WIDTH).bfloat16()

    def gradient(run: Program, given: Tensor) -> Tensor:
        given = given.clone().requires_grad_()
        run(given).square().sum().backward()
        assert given.grad is not None
        return given.grad

    torch._dynamo.reset()
    with config.patch(force_disable_caches=True):
        got = gradient(torch.compile(module, backend="fusepass"), x)
    eager, exact = gradient(module, x), gradient(copy.deepcopy(module).double(), x.double())
    assert rms_error(got, exact) <= 1.05 * rms_error(eager, exact)
    assert gemm_region.SUM_APART in asked
    assert not any("addmm" in name for name in graphs)


def own(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return torch.addmm(y @ v, x, w)


def halved(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return torch.add(y, x @ w, alpha=0.5)


def a_row(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return x @ w + y[0]


def more(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return torch.relu(x @ w + y)


@pytest.mark.parametrize("program", [own, halved, a_row, more])
def test_what_comes_close(program: Program, asked: list[str]) -> None:
    """``addmm`` of the program itself rounds once; other sums are no library's."""
    given = [torch.randn(ROWS, ROWS).bfloat16() for _ in range(4)]
    torch._dynamo.reset()
    with config.patch(force_disable_caches=True), torch.no_grad():
        torch.compile(program, backend="fusepass")(*given)
    assert gemm_region.SUM_APART not in asked


@pytest.mark.parametrize("padded", ["", "constant_pad_nd", "cat"])
def test_what_inductor_has_padded(padded: str) -> None:
    """Padding puts other calls in the place of the program's own, which nothing tells apart."""
    graph = torch.fx.Graph()
    c, x, w = (graph.placeholder(name) for name in "cxw")
    if padded == "cat":
        x = graph.call_function(torch.ops.aten.cat.default, ([x, x], 1))
    elif padded:
        x = graph.call_function(torch.ops.aten.constant_pad_nd.default, (x, [0, 4]))
    node = graph.call_function(torch.ops.aten.addmm.default, (c, x, w))
    c.meta["val"] = node.meta["val"] = torch.empty(8, 8)
    assert gemm_region.was_separate(node) == (not padded)
