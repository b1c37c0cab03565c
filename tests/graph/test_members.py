"""Which element-wise computations of a graph can be put together, and how they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusepass.graph.members import FEWEST, groups_of, program_of

COUNT = FEWEST + 1


def traced(function: Callable[..., Any], *args: Any) -> fx.Graph:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = torch.utils._pytree.tree_map_only(Tensor, mode.from_tensor, args)
        return make_fx(function)(*fakes).graph


def many(*shape: int) -> list[Tensor]:
    return [torch.randn(shape) for _ in range(COUNT)]


def sizes(function: Callable[..., Any], *args: Any) -> list[int]:
    return [len(group) for group in groups_of(traced(function, *args))]


def test_independent_ones() -> None:
    graph = traced(
        lambda xs, ys: [(x * 2 + y).exp() for x, y in zip(xs, ys, strict=True)],
        many(3, 4),
        many(3, 4),
    )
    (group,) = groups_of(graph)
    program = program_of(group)
    assert len(group) == COUNT
    assert program.members == (0,) * COUNT
    (body,) = program.bodies
    assert [step.op for step in body.steps] == ["mul", "add", "exp"]
    assert [operand.kind for operand in body.operands] == ["full", "full"]


def test_too_few() -> None:
    assert sizes(lambda xs: [x.exp() for x in xs], many(3)[: FEWEST - 1]) == []


def test_one_after_the_other_through_products() -> None:
    def chain(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(COUNT):
            x = (x @ w).relu()
        return x

    assert sizes(chain, torch.randn(4, 4), torch.randn(4, 4)) == []


def test_stages() -> None:
    def two(xs: list[Tensor], w: Tensor) -> list[Tensor]:
        return [(x.exp() @ w).relu() for x in xs]

    assert sizes(two, many(4, 4), torch.randn(4, 4)) == [COUNT, COUNT]


def test_a_number_for_each_row_of_memory() -> None:
    def scaled(ws: list[Tensor], s: Tensor) -> list[Tensor]:
        return [w * (s + 1e-5).rsqrt() for w in ws]

    for w in (
        torch.randn(6, 5, 3, 3),
        torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last),
    ):
        (group,) = groups_of(traced(scaled, [w] * COUNT, torch.rand(6, 1, 1, 1)))
        assert [one.kind for one in group[0].body.operands] == ["full", "column"]
    transposed = torch.randn(5, 6).t()  # the slowest dimension is the other one
    assert sizes(scaled, [transposed] * COUNT, torch.rand(6, 1)) == []
    (group,) = groups_of(traced(scaled, [transposed] * COUNT, torch.rand(1, 5)))
    assert [one.kind for one in group[0].body.operands] == ["full", "column"]


def test_what_inductor_would_fuse_with_something_else() -> None:
    xs = many(4, 4)
    assert sizes(lambda xs: [x.exp().sum() for x in xs], xs) == []
    assert sizes(lambda xs: [x.softmax(-1).exp() for x in xs], xs) == []
    assert sizes(lambda xs: [x.exp().t().contiguous() + 1 for x in xs], xs) == []
    assert sizes(lambda xs: [x[:2].exp() for x in xs], xs) == []


def test_what_the_kernel_cannot_compute() -> None:
    xs = many(4, 4)
    assert sizes(lambda xs: [x.double().exp() for x in xs], xs) == []
    assert sizes(lambda xs: [x.long() + 1 for x in xs], xs) == []
    assert sizes(lambda xs: [x + torch.rand_like(x) for x in xs], xs) == []
    assert sizes(lambda xs: [x.as_strided((2, 2), (8, 2)).exp() for x in xs], xs) == []
    assert sizes(lambda xs: [x.cumsum(0) for x in xs], xs) == []
    assert sizes(lambda xs: [x.exp() for x in xs], [torch.randn(0)] * COUNT) == []


def test_a_write_is_left_alone() -> None:
    def written(xs: list[Tensor]) -> list[Tensor]:
        return [x.copy_(x * 2) for x in xs]

    assert sizes(written, many(4)) == []


def test_nothing_is_moved_over_a_write() -> None:
    def some(xs: list[Tensor], y: Tensor) -> list[Tensor]:
        made = [x.exp() for x in xs]
        y.add_(1)
        return [*made, *(y * x for x in xs)]

    assert sizes(some, many(4), torch.randn(4)) == [COUNT]


def test_what_is_held_is_bounded() -> None:
    def products(ws: list[Tensor], x: Tensor) -> list[Tensor]:
        return [x @ w.relu() for w in ws]

    columns = range(4, 4 + 2 * COUNT)
    ws = [torch.randn(4, size) for size in columns]
    graph = traced(products, ws, torch.randn(2, 4))
    in_bytes = [16 * size for size in columns]
    assert [len(group) for group in groups_of(graph)] == [2 * COUNT]
    (group,) = groups_of(graph, sum(in_bytes[:-3]))
    assert [one.root.meta["val"].nbytes for one in group] == in_bytes[:-3]
    assert groups_of(graph, 100) == []
    leaving = traced(lambda ws: [w.relu() for w in ws], ws)
    assert [len(group) for group in groups_of(leaving, 100)] == [2 * COUNT]  # held in any case
    made = traced(lambda ws, x: [(x @ w).relu() for w in ws], ws, torch.randn(4, 4))
    assert [len(group) for group in groups_of(made)] == [2 * COUNT]
    assert groups_of(made, 100) == []  # the products would wait for each other
