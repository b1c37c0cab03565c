"""Concatenations of many computed tensors: what is grouped, what comes close, nothing changes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fusepass
from fusepass.fusion.pointwise.cat_inputs import groups_of
from fusepass.options import Options
from fusepass.patterns import grouped_cat
from fusepass.report.decision import Station
from fusepass.rewrite.apply.graph_rule_driver import rewrite
from fusepass.tune import INDUCTOR, Choice
from tests.patterns.conv_programs import OPTIONS, applied
from tests.perf.small_updates import launches

RULE = "grouped_cat"
Program = Callable[..., Any]


def features(count: int = 12, rows: int = 6, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Tensors of three widths; NaN, infinities and a negative zero among them."""
    made = [torch.randn(rows, 3 + i % 3).to(dtype) for i in range(count)]
    for one, number in zip(made, (float("nan"), float("inf"), float("-inf"), -0.0), strict=False):
        one[0, 0] = number
    return made


def found_in(program: Program, given: Sequence[Tensor], train: bool = False) -> int:
    """How often the rule acted; all bits, strides and gradients are eager's."""
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS)

    def run(function: Program) -> list[Tensor]:
        mine = [one.clone() for one in given]
        floats = [one.requires_grad_() for one in mine if train and one.is_floating_point()]
        with torch.set_grad_enabled(train):
            outs: list[Tensor] = torch.utils._pytree.tree_leaves(function(*mine))
            if train:
                total = sum(one.sin().sum() for one in outs)
                outs += torch.autograd.grad(total, floats)  # type: ignore[arg-type]
        return outs

    for mine, theirs in zip(run(compiled), run(program), strict=True):
        assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    return applied(compiled, RULE)


def doubled(given: Sequence[Tensor]) -> list[Tensor]:
    return [one * 2 + 1 for one in given]


TAKEN: dict[str, Program] = {
    "alone": lambda *t: torch.cat(doubled(t), 1),
    "read element by element": lambda *t: F.relu(torch.cat(doubled(t), 1)) * 3,
    "read by a product": lambda *t: torch.cat(doubled(t), -1) @ torch.ones(48, 4),
    "reduced": lambda *t: torch.cat(doubled(t), 1).sum(1),
    "along rows": lambda *t: torch.cat([one[:, :3] - 1 for one in t]),
    "stacked": lambda *t: torch.stack([one[:, :3] - 1 for one in t], 1),
    "in memory between": lambda *t: torch.cat([*doubled(t[:5]), t[5], *doubled(t[6:])], 1),
    "one twice": lambda *t: torch.cat([*doubled(t), t[0], t[0]], 1),
    "views of computed": lambda *t: torch.cat([(one + 1).unsqueeze(0) for one in t], 2),
    "casts": lambda *t: torch.cat([one.double() for one in t], 1),
    "copies": lambda *t: torch.cat([one.t().contiguous() for one in t], 0),
    "a number read by all": lambda *t: torch.cat([one * t[0].flatten()[5] for one in t], 1),
    "a constant in each": lambda *t: torch.cat([torch.where(one > 0, one, 0.5) for one in t], 1),
    "gathered": lambda *t: torch.cat([one[[2, 0, 5]] for one in t], 1),
    "of two tensors": lambda *t: torch.cat([t[i] * t[i + 12] for i in range(12)], 1),
    "two of them": lambda *t: (torch.cat(doubled(t), 1), torch.cat([one - 1 for one in t], 1)),
}
TIMES = {"two of them": 2}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_grouped(name: str) -> None:
    given = features(24) if name == "of two tensors" else features()
    assert found_in(TAKEN[name], given) == TIMES.get(name, 1)


@pytest.mark.parametrize("count", [9, 16, 17, 40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_how_many(count: int, dtype: torch.dtype) -> None:
    assert found_in(TAKEN["read element by element"], features(count, 3, dtype)) == 1


@pytest.mark.parametrize("name", ["alone", "read element by element", "in memory between"])
def test_gradients(name: str) -> None:
    given = [one.nan_to_num(0, 1, 1) for one in features()]
    assert found_in(TAKEN[name], given, train=True) == 1


def test_channels_last() -> None:
    images = [torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last) for _ in range(10)]
    assert found_in(TAKEN["alone"], images) == 1


def test_embeddings() -> None:
    """What recommendation models begin with."""
    tables = [torch.randn(20, 4) for _ in range(11)]
    indices = torch.randint(0, 20, (11, 7))

    def program(indices: Tensor, *tables: Tensor) -> Tensor:
        return torch.cat([F.embedding(indices[i], one) for i, one in enumerate(tables)], 1)

    assert found_in(program, [indices, *tables]) == 1


CLOSE: dict[str, Program] = {
    "as few as Inductor joins": lambda *t: torch.cat(doubled(t[:8]), 1),
    "eight computed": lambda *t: torch.cat([*doubled(t[:8]), *t[8:]], 1),
    "in memory": lambda *t: torch.cat(t, 1),
    "read elsewhere": lambda *t: (torch.cat(u := doubled(t), 1), [one * 3 for one in u]),
    "of one tensor": lambda *t: torch.cat([t[0] * (0.5 + i) for i in range(12)], 1),
    "a positional encoding": lambda *t: torch.cat(
        [t[0], *(f(t[0] * 2.0**i) for i in range(6) for f in (torch.sin, torch.cos))], 1
    ),
    "one read by all": lambda *t: torch.cat(list(map(torch.mul, t, [t[0][:, :1]] * 12)), 1),
    "products": lambda *t: torch.cat([one[:, :3] @ torch.ones(3, 2) for one in t], 1),
    "reduced": lambda *t: torch.cat([one - one.amax(1, keepdim=True) for one in t], 1),
    "scans": lambda *t: torch.cat([one.cumsum(1) for one in t], 1),
    "much to compute": lambda *t: torch.cat(
        [functools.reduce(torch.mul, [one] * 10) for one in t], 1
    ),
    "every other one computed": lambda *t: torch.cat(
        [one if i % 2 else one + 1 for i, one in enumerate(t)], 1
    ),
    "of several dtypes": lambda *t: torch.cat([t[0].half() + 1, *doubled(t[1:])], 1),
}


@pytest.mark.parametrize("name", CLOSE)
def test_what_comes_close(name: str) -> None:
    assert found_in(CLOSE[name], features()) == 0


def test_batches_that_vary() -> None:
    compiled = torch.compile(
        TAKEN["read element by element"], backend="fusepass", options=OPTIONS, dynamic=True
    )
    for rows in (6, 9, 12):
        given = features(rows=rows)
        want = TAKEN["read element by element"](*given)
        torch.testing.assert_close(compiled(*given), want, rtol=0, atol=0, equal_nan=True)
    assert applied(compiled, RULE) == 1


@pytest.mark.parametrize(
    ("answer", "options", "device", "grouped"),
    [
        (grouped_cat.GROUPED, Options(), "cuda", True),
        (INDUCTOR, Options(), "cuda", False),
        (grouped_cat.GROUPED, Options(), "cpu", False),
        (grouped_cat.GROUPED, Options(codegen="eager-decomposed"), "cuda", False),
        (grouped_cat.GROUPED, Options(inductor={"force_pointwise_cat": True}), "cuda", False),
        (grouped_cat.GROUPED, Options(inductor={"combo_kernels": True}), "cuda", False),
        (grouped_cat.GROUPED, Options(inductor={"max_pointwise_cat_inputs": 30}), "cuda", False),
    ],
)
def test_the_tuner_is_asked(
    answer: str, options: Options, device: str, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About what Inductor generates for either, by how much there is of what."""
    asked: list[Any] = []

    def choose(*given: Any) -> Choice:
        asked.append(given)
        return Choice(answer, {INDUCTOR: 20.0, grouped_cat.GROUPED: 10.0}, "measured", "")

    monkeypatch.setattr(grouped_cat, "choose", choose)
    with FakeTensorMode():
        given = [torch.empty(64, 16, device=device, dtype=torch.float16) for _ in range(26)]
        graph = make_fx(TAKEN["alone"], select_decomp_table())(*given)
    before = [node for node in graph.graph.nodes if "cat" in str(node.target)]
    said = rewrite(graph, (grouped_cat.RULE,), options, Station.AFTER)
    after = [node for node in graph.graph.nodes if "cat" in str(node.target)]
    assert len(before) == 1
    assert len(after) == (5 if grouped else 1)
    assert [one.outcome for one in said] == ["applied" if grouped else "rejected"]
    assert len(asked) == (grouped or answer == INDUCTOR)
    for problem, _, candidates in asked:
        assert (problem.m, problem.n, problem.k) == (64, 26 * 16, 26)
        assert all(one.generated for one in candidates)
    if grouped:
        *parts, whole = after
        assert [len(part.args[0]) for part in parts] == [6, 7, 6, 7]
        assert whole.args == (parts, 1)
        assert whole.meta["val"].shape == (64, 26 * 16)
        assert [part.meta["val"].shape[1] for part in parts] == [96, 112, 96, 112]


@pytest.mark.parametrize(
    ("shape", "strides", "dim", "rows"),
    [
        ((6, 8), (8, 1), 1, 6),
        ((6, 8), (8, 1), 0, 1),
        ((6, 8), (1, 6), 0, 8),
        ((2, 3, 4, 5), (60, 1, 15, 3), 1, 2 * 4 * 5),  # channels last
        ((2, 3, 4, 5), (60, 20, 5, 1), 1, 2),
        ((2, 0, 4), (4, 4, 1), 1, 1),  # nothing in all
    ],
)
def test_how_it_lies(shape: tuple[int, ...], strides: tuple[int, ...], dim: int, rows: int) -> None:
    """What is timed has rows as long as those that each input writes at a time."""
    count = math.prod(shape)
    assert grouped_cat._rows_and_columns(shape, strides, dim) == (rows, count // rows)


def test_what_is_timed_computes_the_same() -> None:
    given = [torch.randn(5, 4) for _ in range(19)]
    whole, grouped = (one.run(*given) for one in grouped_cat.candidates())
    assert torch.equal(whole, grouped)
    assert torch.equal(whole, torch.cat(given, 1).relu())


def test_groups() -> None:
    """In order, as large as each other; what is in memory parts them."""

    def program(*t: Tensor) -> Tensor:
        return torch.cat([*doubled(t[:9]), t[9], *doubled(t[10:])], 1)

    graph = make_fx(program)(*features(20)).graph
    (cat,) = graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    given: Any = cat.args[0]
    groups = groups_of(given)
    assert [len(one) for one in groups] == [4, 5, 1, 5, 5]
    assert [node for group in groups for node in group] == list(given)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [9, 26])
def test_on_a_device(count: int) -> None:
    """Chosen there or not: the same bits, and fewer kernels where it is."""
    given = [torch.randn(512, 16, device="cuda", dtype=torch.half) for _ in range(count)]
    program = TAKEN["read element by element"]
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass")
    want = torch.compile(program, backend="inductor")(*given)
    torch.testing.assert_close(compiled(*given), want, rtol=0, atol=0)
    (said,) = [one for one in fusepass.last_report(compiled).decisions if one.rule == RULE]
    assert said.reason_code in ("measured", "slower", "no_rule")
    fewer = said.reason_code == "measured"
    assert launches(lambda: compiled(*given)) == (-(-count // 8) + 1 if fewer else count + 1)
