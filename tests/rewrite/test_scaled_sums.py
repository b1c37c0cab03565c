"""Sums with a factor beside a product of matrices, of which plain Inductor drops the factor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from fusepass.error_rule import rms_error
from fusepass.rewrite.scaled_sums import part_scaled_sums

Program = Callable[[Tensor, Tensor, Tensor], Tensor]
PROGRAMS: dict[str, Program] = {
    "product scaled": lambda x, w, y: torch.add(y, x @ w, alpha=0.5),
    "product plain": lambda x, w, y: torch.add(x @ w, y, alpha=-3),
    "two products": lambda x, w, y: torch.add(x @ y, x @ w, alpha=2),
    "in place": lambda x, w, y: y.clone().add_(x @ w, alpha=0.25),
    "batches": lambda x, w, y: torch.add(y, (x.view(4, 9, 36) @ w).view(36, 36), alpha=0.5),
    "method": lambda x, w, y: (x @ w).add(y[0], alpha=0.5),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("train", [False, True])
def test_the_factor_counts(name: str, dtype: torch.dtype, train: bool) -> None:
    program = PROGRAMS[name]
    given = [torch.randn(36, 36).to(dtype).requires_grad_(train) for _ in range(3)]

    def results(run: Program, some: list[Tensor]) -> list[Tensor]:
        with torch.set_grad_enabled(train):
            made = run(*some)
        return [made, *torch.autograd.grad(made.square().sum(), some)] if train else [made]

    got = results(torch.compile(program, backend="fusepass"), given)
    eager = results(program, given)
    exact = results(program, [one.detach().double().requires_grad_(train) for one in given])
    for mine, theirs, right in zip(got, eager, exact, strict=True):
        assert mine.dtype is theirs.dtype
        assert rms_error(mine.detach(), right) <= 1.5 * rms_error(theirs.detach(), right) + 1e-6


def sums(build: Callable[[fx.Graph, fx.Node, fx.Node], fx.Node]) -> list[str]:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    for node in (x, y):
        node.meta["val"] = torch.empty(4, 4)
    graph.output(build(graph, x, y))
    part_scaled_sums(graph)
    graph.lint()
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def test_others_stay_as_they_are() -> None:
    aten = torch.ops.aten
    plain = sums(lambda g, x, y: g.call_function(aten.add.Tensor, (x, y), {"alpha": 2}))
    assert plain == ["aten.add.Tensor"]  # no product: Inductor generates it as it stands
    product = (torch.ops.aten.mm.default, "aten.mm.default")

    def added(graph: fx.Graph, x: fx.Node, y: fx.Node) -> fx.Node:
        return graph.call_function(aten.add.Tensor, (graph.call_function(product[0], (x, y)), y))

    assert sums(added) == [product[1], "aten.add.Tensor"]
