"""A norm of one row and its products: what the tuner is asked, and where nothing is to be gained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fusepass.fusion.kernel_ir.epilogue import Epilogue, Output
from fusepass.inductor.passes import rewrite_aten
from fusepass.kernels.gemm import normed_gemms as kernel
from fusepass.kernels.gemm.tiles import tiles
from fusepass.options import Options
from fusepass.patterns import gemm_region, normed_gemms
from fusepass.patterns.normed_gemms import APART
from fusepass.patterns.sibling_gemms import timed_tiles
from fusepass.tune import INDUCTOR, Choice
from tests.patterns.test_normed_gemms import (
    NO_SIBLINGS,
    NORMS,
    K,
    N,
    activation,
    attention,
    drawn,
    graph_of,
    layer_norm,
    llama,
    pair,
    without_shift,
)


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """As if a device were there; what the tuner is asked."""
    from fusepass.inductor import passes

    asked: list[Any] = []

    def chosen(problem: Any, options: Any, candidates: Any) -> Choice:
        asked.append((problem, [one.name for one in candidates]))
        name = candidates[-1].name
        return Choice(name, {name: 1.0}, "measured", "by the test")

    monkeypatch.setattr(passes, "_on_cuda", lambda node: True)
    monkeypatch.setattr(normed_gemms.kernel_gate, "gate_reason", lambda *_: None)
    monkeypatch.setattr(normed_gemms, "choose", chosen)
    monkeypatch.setattr(normed_gemms, "memory_of_device", lambda _: 1 << 30)
    left = Choice(INDUCTOR, {}, "measured", "by the test")
    monkeypatch.setattr(gemm_region, "choose", lambda *_: left)
    return asked


@pytest.mark.parametrize("norm", ["llama", "layer_norm"])
def test_the_tuner_is_asked(norm: str, on_cuda: list[Any]) -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return attention(NORMS[norm](x, gain), w, b)

    gm = graph_of(program, *drawn(torch.bfloat16, 1))
    rewrite_aten(gm.graph, Options(rules=NO_SIBLINGS), ())
    ((problem, names),) = on_cuda
    assert not any(one.startswith(APART) for one in names)  # no rule would take the products

    on_cuda.clear()
    gm = graph_of(program, *drawn(torch.bfloat16, 1))
    rewrite_aten(gm.graph, Options(), ())
    ((problem, names),) = on_cuda
    assert (problem.m, problem.k, problem.widths) == (1, K, (N, 8, N))
    assert names[0] == "inductor"
    theirs = [APART + one.name for one in timed_tiles(1, torch.device("cpu"))]
    assert [one for one in names if one.startswith(APART)] == theirs
    ours = [one.name for one in kernel.choices(problem.norm, problem.epilogues)]
    assert names == ["inductor", *theirs, *ours]  # and no kernel in CUDA C++ where there is none


@pytest.mark.parametrize("name", ["generated", "a sum", "a sum of another product"])
def test_where_the_norm_costs_nothing(name: str, on_cuda: list[Any]) -> None:
    """Inductor computes it in the kernel that makes what it is of."""

    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        made = {
            "generated": lambda: x.sin(),
            "a sum": lambda: x + x.cos(),
            "a sum of another product": lambda: (x + F.linear(x, w[:K])).sin(),
        }[name]()
        return attention(llama(made, gain), w, b)

    gm = graph_of(program, *drawn(torch.bfloat16, 1))
    rewrite_aten(gm.graph, Options(rules=NO_SIBLINGS), ())
    assert not on_cuda


@pytest.mark.parametrize("name", [APART + "any", INDUCTOR])
def test_what_is_faster_apart_is_left(
    name: str, on_cuda: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return pair(llama(x, gain), w, b)

    left = Choice(name, {name: 1.0}, "measured", "by the test")
    monkeypatch.setattr(normed_gemms, "choose", lambda *_: left)
    gm = graph_of(program, *drawn(torch.bfloat16, 1))
    decisions = rewrite_aten(gm.graph, Options(), ())
    gm.recompile()
    assert "normed_gemms" not in gm.code
    (why,) = [one.reason for one in decisions if one.rule == "normed_gemms"]
    assert "left to" in why


def test_two_norms_of_what_a_product_makes(on_cuda: list[Any]) -> None:
    """Side by side, as in GPT-NeoX: neither keeps the residual from the product in front."""

    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        made = x + F.linear(x, w[:K])
        both = layer_norm(made, gain), without_shift(made, w[0])
        return [made, *attention(both[0], w, b), activation(both[1], w, b)]

    gm = graph_of(program, *drawn(torch.bfloat16, 1))
    rewrite_aten(gm.graph, Options(rules=NO_SIBLINGS), ())
    assert [problem.beside for problem, _ in on_cuda] == [True, False]  # the first is gone then

    def wanted(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        made = x + F.linear(x, w[:K])
        both = layer_norm(made, gain), without_shift(made, w[0])
        return [made, both[1], *attention(both[0], w, b), activation(both[1], w, b)]

    on_cuda.clear()
    gm = graph_of(wanted, *drawn(torch.bfloat16, 1))
    rewrite_aten(gm.graph, Options(rules=NO_SIBLINGS), ())
    assert not on_cuda


def test_what_products_alone_would_be_computed_by(
    on_cuda: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as streams, where there are such: else a norm might be taken whose product loses."""
    epilogue = Epilogue(1, (), (), (Output("%0", "bfloat16"),))
    few = {name: tile for name, tile in tiles(epilogue, 227 << 10).items() if tile.few_rows}
    monkeypatch.setattr(normed_gemms.gemm_region, "usable", lambda *_: few)

    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        return activation(llama(x, gain), w, b)

    gm = graph_of(program, *drawn(torch.bfloat16, 1))
    rewrite_aten(gm.graph, Options(), ())
    ((_, names),) = on_cuda
    apart = [name for name in names if name.startswith(APART)]
    assert any("ring" in name for name in apart)
    assert any("row" in name for name in apart)


def test_a_sum_that_others_generate(on_cuda: list[Any]) -> None:
    """Then it stays where it is, and the norm beside it."""

    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        made = x + F.linear(x, w[:K])
        return [made.sin(), *attention(llama(made, gain), w, b)]

    gm = graph_of(program, *drawn(torch.bfloat16, 1))
    rewrite_aten(gm.graph, Options(rules=NO_SIBLINGS), ())
    assert not on_cuda


def test_where_a_product_adds_the_residual(on_cuda: list[Any]) -> None:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> Any:
        made = x + F.linear(x, w[:K])
        return [made, *attention(llama(made, gain), w, b)]

    for more, asked in (({}, 1), ({"gemm_epilogue": False}, 0)):
        on_cuda.clear()
        gm = graph_of(program, *drawn(torch.bfloat16, 1))
        rewrite_aten(gm.graph, Options(rules={**NO_SIBLINGS, **more}), ())
        assert len(on_cuda) == asked
