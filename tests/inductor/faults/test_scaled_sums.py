"""Sums with a factor, which plain Inductor drops where one of its patterns matches the sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config

from fusepass.inductor.faults.rewrites import split_scaled_adds
from fusepass.numerics import rms_error

Program = Callable[[Tensor, Tensor, Tensor], Tensor]
PROGRAMS: dict[str, Program] = {
    "product scaled": lambda x, w, y: torch.add(y, x @ w, alpha=0.5),
    "product plain": lambda x, w, y: torch.add(x @ w, y, alpha=-3),
    "two products": lambda x, w, y: torch.add(x @ y, x @ w, alpha=2),
    "difference": lambda x, w, y: torch.sub(y, x @ w, alpha=2),
    "in place": lambda x, w, y: y.clone().add_(x @ w, alpha=0.25),
    "batches": lambda x, w, y: torch.add(y, (x.view(4, 9, 36) @ w).view(36, 36), alpha=0.5),
    "a row": lambda x, w, y: (x @ w).add(y[0], alpha=0.5),
    "a number": lambda x, w, y: torch.add(x @ w, y[0, 0].double(), alpha=0.5),
    "attention": lambda x, w, y: attention(*(one.view(1, 2, 18, 36) for one in (x, w, y))),
    "softmax": lambda x, w, y: less_than_most(x * 4).exp() @ w + y,
    "columns": lambda x, w, y: torch.add(y.t(), x[:, ::2] @ w[::2], alpha=0.5),
}


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With a mask that is scaled where it is added."""
    mask = (q - v)[..., :18]
    return torch.softmax(torch.add(q @ k.mT / 6, mask, alpha=0.25), -1) @ v


def less_than_most(t: Tensor) -> Tensor:
    """As a softmax that does not overflow has it, but for the factor.

    For exact numbers only: Inductor does not round the maximum of others in half precision, so
    that its gradient of ``amax`` is NaN, with a factor and without.
    """
    return torch.sub(t, t.amax(-1, keepdim=True), alpha=2)


@pytest.mark.sampled(7)  # a program or two in each way
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
    made = build(graph, x, y)
    made.meta["val"] = torch.empty(4, 4)
    graph.output(made)
    split_scaled_adds(graph)
    graph.lint()
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def test_others_stay_as_they_are() -> None:
    aten = torch.ops.aten

    def plain(graph: fx.Graph, x: fx.Node, y: fx.Node) -> fx.Node:
        return graph.call_function(aten.add.Tensor, (x, y), {"alpha": 1})

    def number(graph: fx.Graph, x: fx.Node, y: fx.Node) -> fx.Node:
        return graph.call_function(aten.add.Tensor, (x, 3), {"alpha": 2})

    def scaled(graph: fx.Graph, x: fx.Node, y: fx.Node) -> fx.Node:
        return graph.call_function(aten.sub.Tensor, (x, y), {"alpha": 2})

    assert sums(plain) == sums(number) == ["aten.add.Tensor"]
    assert sums(scaled) == ["aten.mul.Tensor", "aten.sub.Tensor"]


MIXED = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("first", MIXED)
@pytest.mark.parametrize("second", MIXED)
def test_types_that_are_promoted(first: torch.dtype, second: torch.dtype) -> None:
    """A factor is multiplied in the type of the sum, as in eager, not in that of what is added."""
    whole = not (first.is_floating_point or second.is_floating_point)
    alpha = 3 if whole else 0.1

    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x, y, alpha=alpha)

    x, y = ((torch.randn(9, 33) * 50).to(one) for one in (first, second))
    got, eager = torch.compile(program, backend="fusepass")(x, y), program(x, y)
    assert got.dtype is eager.dtype
    exact = program(x.double(), y.double())
    assert rms_error(got, exact) <= 1.1 * rms_error(eager, exact) + 1e-14


def test_no_intermediate_is_rounded() -> None:
    """Where casts are emulated, as in eager: the product of halves would be infinite."""
    x, w = (torch.randn(64, 64).half() for _ in range(2))
    y = torch.randn(64, 64)

    def program(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return torch.add(y, x @ w, alpha=1e4)

    with config.patch(emulate_precision_casts=True):
        got = torch.compile(program, backend="fusepass")(x, w, y)
    assert got.isfinite().all()
    torch.testing.assert_close(got, program(x, w, y), rtol=2e-3, atol=1)


def test_empty_and_not_finite() -> None:
    def program(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return torch.add(y, x @ w, alpha=0.5)

    compiled = torch.compile(program, backend="fusepass")
    assert compiled(torch.randn(0, 5), torch.randn(5, 3), torch.randn(0, 3)).shape == (0, 3)
    x, w, y = torch.ones(4, 5), torch.ones(5, 3), torch.zeros(4, 3)
    x[0, 0], x[1, 0], y[2, 0] = float("nan"), float("inf"), -float("inf")
    torch.testing.assert_close(compiled(x, w, y), program(x, w, y), equal_nan=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_factors_that_vary(dynamic: bool | None) -> None:
    def program(x: Tensor, w: Tensor, y: Tensor, n: int) -> Tensor:
        y = torch.add(y, x @ w, alpha=x.shape[0])
        return torch.add(y, torch.add(x, y, alpha=n) @ w, alpha=1 / x.shape[0])

    compiled = torch.compile(program, backend="fusepass", dynamic=dynamic)
    for rows, n in ((40, 3), (20, 5), (24, 1)):
        x, y = torch.randn(rows, 36), torch.randn(rows, 36)
        w = torch.randn(36, 36)
        torch.testing.assert_close(compiled(x, w, y, n), program(x, w, y, n), rtol=1e-4, atol=1e-3)
