"""Products of one row, as Inductor writes them out for its autotuning: recognised, and put back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fusepass.fusion.gemm.one_row import decompose, recompose
from fusepass.graph.ops.op_names import op_name

K, N = 16, 24


def written_out(x: Tensor, w: Tensor) -> Tensor:
    """As Inductor does it, which it does on no CPU."""
    return (x.float().unsqueeze(2) * w.float().unsqueeze(0)).sum(1).to(x.dtype)


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(written_out(x, w)) * written_out(x, v)


def traced(program: Callable[..., Any], rows: int = 1) -> fx.GraphModule:
    x, w = torch.randn(rows, K).bfloat16(), torch.randn(K, N).bfloat16()
    gm: fx.GraphModule = make_fx(program, select_decomp_table(), tracing_mode="fake")(x, w, w + 1)
    return gm


def names(gm: fx.GraphModule) -> Counter[str | None]:
    return Counter(op_name(node) for node in gm.graph.nodes if node.op == "call_function")


def test_there_and_back() -> None:
    gm = traced(gated)
    before, text = names(gm), str(gm.graph)
    recompose(gm)
    found = names(gm)
    assert found["mm"] == 2
    assert found["sum"] == found["unsqueeze"] == 0
    assert "mm" in str(gm.graph)
    decompose(gm)
    gm.graph.lint()
    assert names(gm) == before
    assert "mm" not in text
    args = torch.randn(1, K).bfloat16(), *(torch.randn(K, N).bfloat16() for _ in range(2))
    gm.recompile()
    torch.testing.assert_close(gm(*args), gated(*args), rtol=0, atol=0)
    values = [node.meta["val"] for node in gm.graph.nodes if node.op == "call_function"]
    assert all(isinstance(value, Tensor) for value in values)


def test_inductors_own() -> None:
    """What its decompositions make of a product on a GPU, of which there need be none."""
    with FakeTensorMode(), config.patch(coordinate_descent_tuning=True):
        x = torch.empty(1, K, device="cuda", dtype=torch.float16)
        w = torch.empty(K, N, device="cuda", dtype=torch.float16)
        gm = make_fx(lambda x, w: (x @ w) * 2, select_decomp_table())(x, w)
    assert "mm" not in names(gm)
    recompose(gm)
    assert names(gm)["mm"] == 1
    assert "sum" not in names(gm)


@pytest.mark.parametrize(("x", "w"), [((1, 1), (K, N)), ((1, K), (1, N))])
def test_broadcast_operands_are_not_recomposed(x: tuple[int, int], w: tuple[int, int]) -> None:
    given = torch.randn(x).bfloat16(), torch.randn(w).bfloat16()
    gm = make_fx(written_out, select_decomp_table(), tracing_mode="fake")(*given)
    before = str(gm.graph)
    recompose(gm)
    assert str(gm.graph) == before


NOT: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "kept in single precision": lambda x, w, v: (
        x.float().unsqueeze(2) * w.float().unsqueeze(0)
    ).sum(1),
    "another dimension": lambda x, w, v: (
        (x.float().unsqueeze(2) * w.float().unsqueeze(0)).sum(2).bfloat16()
    ),
    "a sum of two": lambda x, w, v: (
        (x.float().unsqueeze(2) + w.float().unsqueeze(0)).sum(1).bfloat16()
    ),
    "the product is used": lambda x, w, v: (
        (p := x.float().unsqueeze(2) * w.float().unsqueeze(0)).sum(1).bfloat16() + p.amax()
    ),
    "not from half precision": lambda x, w, v: (
        (x.float().sin().unsqueeze(2) * w.float().unsqueeze(0)).sum(1).bfloat16()
    ),
    "to another dtype": lambda x, w, v: (
        (x.float().unsqueeze(2) * w.float().unsqueeze(0)).sum(1).half()
    ),
}


@pytest.mark.parametrize("name", NOT)
def test_other_reductions_are_not_recomposed(name: str) -> None:
    gm = traced(NOT[name])
    before = str(gm.graph)
    recompose(gm)
    assert str(gm.graph) == before


def test_no_rounding_behind() -> None:
    """Inductor drops the rounding of a product in front of a cast; one of the user's is no product."""

    def program(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        wide = (x.float().unsqueeze(2) * w.float().unsqueeze(0)).sum(1)
        return (wide.sigmoid() * written_out(x, v)).bfloat16()

    gm = traced(program)
    before, text = names(gm), str(gm.graph)
    for node in gm.graph.nodes:
        node.meta["original_aten"] = deepcopy(torch.ops.aten.mm.default)
    wide: Any = next(node for node in gm.graph.nodes if op_name(node) == "unsqueeze").args[0]
    wide.meta["original_aten"] = torch.ops.aten._to_copy.default  # the user's own
    recompose(gm)
    assert names(gm)["mm"] == 1  # the one that is rounded
    decompose(gm)
    wide = next(node for node in gm.graph.nodes if op_name(node) == "unsqueeze").args[0]
    wide.meta["original_aten"] = torch.ops.aten.mm.default
    recompose(gm)
    gm.graph.lint()
    assert names(gm)["mm"] == 2
    assert "sum" not in names(gm)
    decompose(gm)
    gm.graph.lint()
    gm.recompile()
    assert names(gm) == before
    assert text.count("sum") == str(gm.graph).count("sum")
    args = torch.randn(1, K).bfloat16(), *(torch.randn(K, N).bfloat16() for _ in range(2))
    torch.testing.assert_close(gm(*args), program(*args), rtol=0, atol=0)


def test_two_rows_are_not_recomposed() -> None:
    gm = traced(gated, rows=2)
    before = str(gm.graph)
    recompose(gm)
    assert str(gm.graph) == before
