"""Many small kernels in one: through whole programs, with what Inductor makes of the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusepass.patterns import horizontal
from tests.patterns.conv_programs import AROUND, CHANNELS, Layer, applied

REFERENCE = {"candidate": "reference"}
SIZES = [3, 64, 100, 777] * 5


def updated(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    pairs = zip(ps, gs, strict=True)
    return [p * 0.99 - 0.01 * g * torch.sigmoid(p) for p, g in pairs]


def mixed(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    return [F.silu(p) if i % 3 else (p > 0) | (p < -1) for i, p in enumerate([*ps, *gs])]


def in_two_steps(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    return [((p * g) @ g).relu() for p, g in zip(ps, gs, strict=True)]


def written(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    for p, g in zip(ps, gs, strict=True):
        p.mul_(0.9).sub_(g * 0.1)
    return [p.exp() for p in ps]


VECTORS = [(size,) for size in SIZES]
PROGRAMS: list[tuple[Callable[..., Any], list[tuple[int, ...]]]] = [
    (updated, VECTORS),
    (mixed, VECTORS),
    (in_two_steps, [(16, 16)] * 20),
]


@pytest.mark.parametrize(("program", "shapes"), PROGRAMS)
@pytest.mark.parametrize("codegen", ["inductor", "eager-decomposed"])
def test_values(program: Callable[..., Any], shapes: list[tuple[int, ...]], codegen: str) -> None:
    ps, gs = ([torch.randn(shape) for shape in shapes] for _ in range(2))
    ps[3].view(-1)[1], gs[2].view(-1)[0] = float("nan"), float("inf")
    options = {**REFERENCE, "codegen": codegen}
    compiled = torch.compile(program, backend="fusepass", options=options)
    with torch.no_grad():
        for got, want in zip(compiled(ps, gs), program(ps, gs), strict=True):
            assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
            torch.testing.assert_close(got, want, equal_nan=True)
    assert applied(compiled, "horizontal") == 1


def test_writes_stay_where_they_are() -> None:
    ps, gs = ([torch.randn(size) for size in SIZES] for _ in range(2))
    own = [p.clone() for p in ps]
    compiled = torch.compile(written, backend="fusepass", options=REFERENCE)
    with torch.no_grad():
        for got, want in zip(compiled(ps, gs), written(own, gs), strict=True):
            torch.testing.assert_close(got, want)
    for p, mine in zip(ps, own, strict=True):
        torch.testing.assert_close(p, mine)


def test_weights_of_many_convolutions() -> None:
    module = nn.Sequential(*(Layer(AROUND["shortcut"]) for _ in range(4))).eval()
    x = torch.randn(2, CHANNELS, 6, 5)
    compiled = torch.compile(module, backend="fusepass", options=REFERENCE)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
        module[0].norm.running_var.mul_(2)  # type: ignore[union-attr]
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    assert applied(compiled) == 4
    assert applied(compiled, "horizontal") == 1


def test_too_few_and_switched_off() -> None:
    ps, gs = ([torch.randn(size) for size in SIZES] for _ in range(2))
    off = {**REFERENCE, "rules": {"horizontal": False}}
    for options, count in ((REFERENCE, 3), (off, len(ps)), ({}, len(ps))):
        torch.compiler.reset()
        compiled = torch.compile(updated, backend="fusepass", options=options)
        with torch.no_grad():
            compiled(ps[:count], gs[:count])
        assert applied(compiled, "horizontal") == 0


def test_calls_that_depend_on_each_other_are_put_in_order() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    late = graph.call_function(torch.relu, (x,))
    early = graph.call_function(torch.neg, (x,))
    last = graph.call_function(torch.add, (late, early))
    graph.output(last)
    late.replace_input_with(x, early)
    horizontal._in_order(graph)
    graph.lint()
    assert [node.name for node in graph.nodes] == ["x", early.name, late.name, last.name, "output"]
