"""Which pointwise computations of a graph can be put together, and how they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusepass.fusion.kernel_ir.epilogue import evaluate
from fusepass.fusion.pointwise import groups
from fusepass.fusion.pointwise.groups import (
    MIN_MEMBERS,
    Member,
    MemberGroups,
    groups_of,
    program_of,
)

COUNT = MIN_MEMBERS + 1


def traced(function: Callable[..., Any], *args: Any) -> fx.Graph:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = torch.utils._pytree.tree_map_only(Tensor, mode.from_tensor, args)
        return make_fx(function)(*fakes).graph


def many(*shape: int) -> list[Tensor]:
    return [torch.randn(shape) for _ in range(COUNT)]


FIVE = (torch.exp, torch.sigmoid, torch.tanh, torch.relu, torch.neg)


def copies(x: Tensor) -> list[Tensor]:
    return [x.clone() for _ in range(COUNT)]


def sizes(function: Callable[..., Any], *args: Any) -> list[int]:
    return [len(group) for group in read(traced(function, *args))]


def read(graph: fx.Graph, *given: float) -> list[list[Member]]:
    """The groups, where nothing is overwritten."""
    found = groups_of(graph, *given)
    assert not found.overwriting
    return found.read


def test_independent_ones() -> None:
    graph = traced(
        lambda xs, ys: [(x * 2 + y).exp() for x, y in zip(xs, ys, strict=True)],
        many(3, 4),
        many(3, 4),
    )
    (group,) = read(graph)
    program = program_of(group)
    assert len(group) == COUNT
    assert program.members == (0,) * COUNT
    (body,) = program.bodies
    assert [step.op for step in body.steps] == ["mul", "add", "exp"]
    assert [operand.kind for operand in body.operands] == ["full", "full"]


def test_numbers_that_are_tensors() -> None:
    """As Inductor's decompositions write them: of ``lerp``, of one that is known to be none."""

    def averaged(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
        weight, never = torch.full((), 0.1, dtype=torch.half), torch.full((), False)
        return [
            x + weight * (y - x) * torch.where(never, x, y) for x, y in zip(xs, ys, strict=True)
        ]

    xs, ys = many(3), many(3)
    graph = traced(averaged, xs, ys)
    (group,) = read(graph)
    body = group[0].body
    assert [step.op for step in body.steps] == ["sub", "mul", "mul", "add"]
    assert body.steps[1].args.count(0.0999755859375) == 1  # as fp16 holds it
    operands = dict(zip((n for n in graph.nodes if n.op == "placeholder"), xs + ys, strict=True))
    (made,) = evaluate(body, [], [operands[node] for node in group[0].operands])
    torch.testing.assert_close(made, averaged(xs, ys)[0])


SUMS: dict[str, Callable[..., Any]] = {
    "addcmul": lambda x, y, z: torch.ops.aten.addcmul.default(x, y, z),
    "addcmul, scaled": lambda x, y, z: torch.ops.aten.addcmul.default(x, y, z, value=-1e-3),
    "addcdiv": lambda x, y, z: torch.ops.aten.addcdiv.default(x, y, z),
    "addcdiv, scaled": lambda x, y, z: torch.ops.aten.addcdiv.default(x, y, z, value=1e-3),
    "fma": lambda x, y, z: torch.ops.prims.fma.default(x, y, z),
}


@pytest.mark.parametrize(
    "name", [one for one in SUMS if one != "fma" or hasattr(torch.ops.prims, one)]
)
def test_sums_of_two(name: str) -> None:
    """Also where a product or quotient alone would be beyond what the dtype holds."""
    x = torch.tensor([1.0, -2.0, float("nan"), 3.0, 0.0, 5.0])
    y = torch.tensor([3.0, float("inf"), 1.0, 1e38, -0.0, 2.0])
    z = torch.tensor([2.0, 0.5, 1.0, 1e-2, 4.0, 0.0])
    graph = traced(
        lambda xs, ys, zs: [*map(SUMS[name], xs, ys, zs)], *(copies(one) for one in (x, y, z))
    )
    (group,) = read(graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    values = dict(zip(inputs, [x] * COUNT + [y] * COUNT + [z] * COUNT, strict=True))
    (made,) = evaluate(group[0].body, [], [values[node] for node in group[0].operands])
    want = x * y + z if name == "fma" else SUMS[name](x, y, z)
    torch.testing.assert_close(made, want, equal_nan=True)


def test_members_that_read_one_tensor_stay_with_inductor() -> None:
    """Is one kernel of Inductor's, which reads it once; a few of each are not in the way."""

    def stepped(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
        return [one for x, y in zip(xs, ys, strict=True) for one in (x * 0.9 + y, y * y, x - y)]

    xs, ys, x = many(3, 4), many(3, 4), torch.randn(3, 4)
    assert sizes(lambda x: [(x * i).exp() for i in range(2 * COUNT)], x) == []
    assert sizes(lambda xs, x: [y * x for y in xs], xs, x) == []
    assert sizes(lambda xs, x: [y * x.view(3, 4) for y in xs], xs, x.view(-1)) == []
    assert sizes(stepped, xs, ys) == [3 * COUNT]
    assert sizes(stepped, xs[: MIN_MEMBERS - 1], ys[: MIN_MEMBERS - 1]) == []
    both = lambda xs, x: [*(y.exp() for y in xs), *((x * i).exp() for i in range(COUNT))]  # noqa: E731
    assert sizes(both, xs, x) == [2 * COUNT]
    large = torch.randn(512, 512)  # a megabyte
    assert sizes(both, xs, large) == [COUNT]
    assert sizes(lambda xs: [f(x) for x in xs for f in FIVE], xs) == [5 * COUNT]
    of_all = lambda xs, x: [y * x for y in xs]  # noqa: E731
    assert sizes(of_all, xs, torch.randn(())) == [COUNT]
    assert sizes(of_all, xs, torch.randn(3, 1)) == []
    longer = [torch.randn(3, 4 + i) for i in range(COUNT)]  # each reads it by other steps
    assert sizes(of_all, longer, torch.randn(3, 1)) == [COUNT]


def test_too_few() -> None:
    assert sizes(lambda xs: [x.exp() for x in xs], many(3)[: MIN_MEMBERS - 1]) == []


def test_members_separated_by_gemms_are_not_grouped() -> None:
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
    def scaled(ws: list[Tensor], ss: list[Tensor]) -> list[Tensor]:
        return [w * (s + 1e-5).rsqrt() for w, s in zip(ws, ss, strict=True)]

    for w in (
        torch.randn(6, 5, 3, 3),
        torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last),
    ):
        (group,) = read(traced(scaled, copies(w), copies(torch.rand(6, 1, 1, 1))))
        assert [one.kind for one in group[0].body.operands] == ["full", "column"]
    transposed = torch.randn(5, 6).t()  # the slowest dimension is the other one
    assert sizes(scaled, copies(transposed), copies(torch.rand(6, 1))) == []
    (group,) = read(traced(scaled, copies(transposed), copies(torch.rand(1, 5))))
    assert [one.kind for one in group[0].body.operands] == ["full", "column"]


def test_members_that_inductor_fuses_elsewhere_are_not_grouped() -> None:
    xs = many(4, 4)
    assert sizes(lambda xs: [x.exp().sum() for x in xs], xs) == []
    assert sizes(lambda xs: [x.softmax(-1).exp() for x in xs], xs) == []
    assert sizes(lambda xs: [x.exp().t().contiguous() + 1 for x in xs], xs) == []
    assert sizes(lambda xs: [x[:2].exp() for x in xs], xs) == []


def test_unsupported_members_are_not_grouped() -> None:
    xs = many(4, 4)
    assert sizes(lambda xs: [x.double().exp() for x in xs], xs) == []
    assert sizes(lambda xs: [x.long() + 1 for x in xs], xs) == []
    assert sizes(lambda xs: [x + torch.rand_like(x) for x in xs], xs) == []
    assert sizes(lambda xs: [x.as_strided((2, 2), (8, 2)).exp() for x in xs], xs) == []
    assert sizes(lambda xs: [x.cumsum(0) for x in xs], xs) == []
    assert sizes(lambda xs: [x.exp() for x in xs], [torch.randn(0)] * COUNT) == []


def test_a_result_that_another_needs() -> None:
    """Each is computed for itself: nothing is left behind that could have been fused."""

    def both(xs: list[Tensor]) -> list[Tensor]:
        return [made for y in map(torch.exp, xs) for made in (y, y.neg())]

    assert sizes(both, many(4)) == [2 * COUNT]
    assert (
        sizes(lambda xs: [one for y in map(torch.exp, xs) for one in (y, y.sum())], many(4)) == []
    )


# --- inputs that are overwritten ------------------------------------------------------------------


def overwriting(function: Callable[..., Any], *args: Any) -> MemberGroups:
    """The groups of a program that writes its inputs, as Inductor is given it: at the end."""
    functional = torch.func.functionalize(function, remove="mutations")
    return groups_of(traced(functional, *args))


def adam(ps: list[Tensor], gs: list[Tensor], ms: list[Tensor], vs: list[Tensor]) -> None:
    for p, g, m, v in zip(ps, gs, ms, vs, strict=True):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.99).add_(g * g, alpha=0.01)
        p.sub_(1e-3 * m / (v.sqrt() + 1e-8))


def test_updates_of_inputs() -> None:
    def updated(ps: list[Tensor], gs: list[Tensor]) -> None:
        for p, g in zip(ps, gs, strict=True):
            p.mul_(0.9).sub_(g)

    found = overwriting(updated, many(3, 4), many(3, 4))
    assert not found.read
    assert len(found.overwriting) == COUNT
    for one in found.overwriting:
        (root,) = one.roots
        assert found.copies[root].args[0] in one.operands
        assert [operand.kind for operand in one.body.operands] == ["full", "full"]
    few = overwriting(updated, many(3)[: MIN_MEMBERS - 1], many(3)[: MIN_MEMBERS - 1])
    assert not few.overwriting


def test_what_reads_another_ones_input_is_computed_with_it() -> None:
    given = many(5), many(5), [one.abs() for one in many(5)], [one.abs() for one in many(5)]
    found = overwriting(adam, *given)
    assert not found.read
    assert len(found.overwriting) == COUNT
    inputs = [node for node in one_graph(found).nodes if node.op == "placeholder"]
    tensors = dict(zip(inputs, [x.clone() for xs in given for x in xs], strict=True))
    want = dict(zip(inputs, [x.clone() for xs in given for x in xs], strict=True))
    flat = list(want.values())
    adam(*(flat[i : i + COUNT] for i in range(0, 4 * COUNT, COUNT)))
    for one in found.overwriting:
        assert len(one.roots) == 3
        made = evaluate(one.body, [], [tensors[node] for node in one.operands])
        for root, x in zip(one.roots, made, strict=True):
            torch.testing.assert_close(x, want[found.copies[root].args[0]])


def one_graph(found: MemberGroups) -> fx.Graph:
    return found.overwriting[0].roots[0].graph


def _swapped(xs: list[Tensor], ys: list[Tensor]) -> None:
    for x, y in zip(xs, ys, strict=True):
        old = x * 2
        x.mul_(0).add_(y)
        y.mul_(0).add_(old)


def test_inputs_that_take_each_others_place() -> None:
    found = overwriting(_swapped, many(6), many(6))
    assert len(found.overwriting) == COUNT
    assert all(len(one.roots) == 2 for one in found.overwriting)


NOT_OVERWRITING: dict[str, Callable[..., Any]] = {
    "read in another order": lambda x, y: x.add_(y.t() if y.shape[0] == y.shape[1] else y.sum()),
    "the result is read, too": lambda x, y: x.add_(y) @ y,
    "the result is returned": lambda x, y: x.mul_(2) + (x.sum() * y),
    "in another dtype": lambda x, y: x.copy_((x.double() * 2).float()),
    "only a part": lambda x, y: x[:2].mul_(2),
    "what is reduced": lambda x, y: x.copy_(x - x.mean()),
}


def test_copies_that_must_stay_separate() -> None:
    for name, function in NOT_OVERWRITING.items():
        found = overwriting(partial(_each, function), many(4, 4), many(4, 4))
        assert not found.overwriting, name


def _each(function: Callable[..., Any], xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
    made = [function(x, y) for x, y in zip(xs, ys, strict=True)]
    return [one for one in made if isinstance(one, Tensor) and not any(one is x for x in xs)]


def test_no_write_but_at_the_end() -> None:
    def program(graph: fx.Graph) -> fx.Graph:
        inputs = [graph.placeholder(f"x{i}") for i in range(COUNT)]
        for one in inputs:
            one.meta["val"] = torch.randn(3)
        for one in inputs:  # a read behind a write
            made = graph.call_function(torch.ops.aten.mul.Tensor, (one, 2))
            made.meta["val"] = torch.randn(3)
            written = graph.call_function(torch.ops.aten.copy_.default, (one, made))
            written.meta["val"] = torch.randn(3)
        graph.output(())
        return graph

    assert not groups_of(program(fx.Graph())).all


def test_nothing_is_moved_over_a_write() -> None:
    def some(xs: list[Tensor], y: Tensor) -> list[Tensor]:
        made = [x.exp() for x in xs]
        y.add_(1)
        return [*made, *(y * x for x in xs)]

    assert sizes(some, many(4), torch.randn(4)) == [COUNT]


def test_memory_held_by_a_group_is_bounded() -> None:
    def products(ws: list[Tensor], x: Tensor) -> list[Tensor]:
        return [x @ w.relu() for w in ws]

    columns = range(4, 4 + 2 * COUNT)
    ws = [torch.randn(4, size) for size in columns]
    graph = traced(products, ws, torch.randn(2, 4))
    in_bytes = [16 * size for size in columns]
    assert [len(group) for group in read(graph)] == [2 * COUNT]
    (group,) = read(graph, sum(in_bytes[:-3]))
    assert [one.roots[0].meta["val"].nbytes for one in group] == in_bytes[:-3]
    assert read(graph, 100) == []
    leaving = traced(lambda ws: [w.relu() for w in ws], ws)
    assert [len(group) for group in read(leaving, 100)] == [2 * COUNT]  # held in any case
    made = traced(lambda ws, x: [(x @ w).relu() for w in ws], ws, torch.randn(4, 4))
    assert [len(group) for group in read(made)] == [2 * COUNT]
    assert read(made, 100) == []  # the products would wait for each other


def test_a_chain_longer_than_pythons_stack() -> None:
    """It is no member, and those beside it are found."""

    def program(xs: list[Tensor], long: Tensor) -> list[Tensor]:
        for _ in range(600):
            long = (long + 0.5) * 0.999
        return [*(x.exp() + 1 for x in xs), long]

    assert sizes(program, many(3, 4), torch.randn(3, 4)) == [COUNT]


def test_sizes_that_vary() -> None:
    """They are looked at as they were when they were traced."""

    def program(xs: list[Tensor], ys: list[Tensor], shared: Tensor) -> list[Tensor]:
        return [x.clone() * y + shared for x, y in zip(xs, ys, strict=True)]

    made = make_fx(program, tracing_mode="symbolic")(many(3, 4), many(3, 1), torch.randn(4))
    assert all(len(group) >= MIN_MEMBERS for group in read(made.graph))
    (group,) = read(traced(lambda xs: [one * 2 for one in xs], many(2, 5)))
    assert [*groups._reads(group[0]).values()] == [2 * 5 * 4]
    x = next(node for node in made.graph.nodes if "val" in node.meta and node.meta["val"].ndim == 2)
    assert [*groups._reads(replace(group[0], operands=(x,))).values()] == [3 * 4 * 4]
