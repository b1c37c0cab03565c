"""GEMM regions in ATen graphs: what is taken in, what is pulled in, and what must not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fusepass.fusion.gemm.grow import GemmRegion, NoRegion, OperandSlice, is_gemm, region_at
from fusepass.graph.ops.op_names import op_name
from fusepass.patterns import gemm_region

M, K, N = 72, 16, 24


def region_of(program: Callable[..., Any], *, pairs: bool = True) -> GemmRegion:
    """The region at the first product of a program of x and two weights, traced to ATen."""
    x, w = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    graph = make_fx(program, select_decomp_table(), tracing_mode="fake")(x, w, w.clone()).graph
    return region_at(next(filter(is_gemm, graph.nodes)), pairs=pairs)


def test_a_result_of_another_dtype_is_no_gemm(tf32: None) -> None:
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    mm = graph.call_function(torch.ops.aten.mm.dtype, (x, w, torch.float32))
    mm.meta["val"] = torch.empty(4, 4)
    assert not is_gemm(mm)
    mm.target, mm.args = torch.ops.aten.mm.default, (x, w)
    assert is_gemm(mm)


def test_outputs_read_by_generated_code() -> None:
    """Inductor would compute the region there; its own calls are no such code."""

    def saved(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        gate, up = x @ w, x @ v
        return (F.silu(gate) * up) @ w.t(), gate, up

    def reduced(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return (F.silu(x @ w) * (x @ v)).view(3, -1, N).sum(1)

    region = region_of(saved)
    assert len(region.outputs) == 3
    assert not gemm_region._feeds_generated_code(region)
    assert gemm_region._feeds_generated_code(region_of(reduced))


def test_halves_taken_one_after_the_other() -> None:
    """The second half is taken when the first has been computed with."""

    def program(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        both = x @ torch.cat([w, v], 1)
        return F.silu(both[..., :N]) * both[..., N:]

    region = region_of(program)
    assert [part.start for part in region.weights] == [0, N]
    assert not region.operands
    assert region.nodes[-1].target == torch.ops.aten.mul.Tensor


@pytest.mark.parametrize("beta", [1, 0, -0.25])
@pytest.mark.parametrize("alpha", [1, 0.5])
def test_a_product_and_a_bias_that_are_scaled(alpha: float, beta: float) -> None:
    def program(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.elu(torch.addmm(v[0], x, w, alpha=alpha, beta=beta))

    region = region_of(program, pairs=False)
    steps = [step.op for step in region.epilogue.steps]
    scaled = ["mul"] * (alpha != 1) + ["mul"] * (beta not in (0, 1)) + ["add"] * (beta != 0)
    assert steps[: len(scaled)] == scaled
    assert [operand.kind for operand in region.epilogue.operands] == ["row"] * (beta != 0)


def test_a_scaled_product_alone_is_no_region() -> None:
    with pytest.raises(NoRegion, match="nothing pointwise"):
        region_of(lambda x, w, v: torch.addmm(v[0], x, w, alpha=0.5, beta=2), pairs=False)


def test_independent_operands_are_computed_in_the_region() -> None:
    def alone(x: Tensor, w: Tensor, saved: Tensor) -> Tensor:
        return (x @ w) * (saved.sigmoid() * 2)

    def needed(x: Tensor, w: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
        gate = saved.sigmoid()
        return (x @ w) * gate, gate.sum()

    given = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16(), torch.randn(M, N).bfloat16()
    for program, operand in ((alone, "placeholder"), (needed, "call_function")):
        graph = make_fx(program, select_decomp_table(), tracing_mode="fake")(*given).graph
        region = region_at(next(filter(is_gemm, graph.nodes)), pairs=False)
        assert [part.node.op for part in region.operands] == [operand]
        assert bool(region.pulled) == (program is alone)


def test_truth_values_are_not_added_up() -> None:
    """``True + True`` is True; a kernel that adds bits would say False."""

    def added(x: Tensor, w: Tensor, a: Tensor) -> Tensor:
        return torch.where((a > 0) + (a > -1), x @ w, 0.0)

    def compared(x: Tensor, w: Tensor, a: Tensor) -> Tensor:
        return torch.where((a > 0) > (a > 1), x @ w, 0.0)

    def multiplied(x: Tensor, w: Tensor, a: Tensor) -> Tensor:
        return torch.where((a > 0) * (a < 1), x @ w, 0.0)

    given = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16(), torch.randn(M, N).bfloat16()
    for program in (added, compared, multiplied):
        graph = make_fx(program, select_decomp_table(), tracing_mode="fake")(*given).graph
        region = region_at(next(filter(is_gemm, graph.nodes)), pairs=False)
        assert [step.op for step in region.epilogue.steps] == ["where"]
        assert [one.dtype for one in region.epilogue.operands] == ["bool"]


def test_single_precision_is_not_pulled_in() -> None:
    """The kernel's functions are exact enough for what is rounded to half precision."""

    def program(x: Tensor, w: Tensor, a: Tensor) -> Tensor:
        return torch.where(a > 0, torch.erf(a), (x @ w).float())

    given = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16(), torch.randn(M, N)
    graph = make_fx(program, select_decomp_table(), tracing_mode="fake")(*given).graph
    region = region_at(next(filter(is_gemm, graph.nodes)), pairs=False)
    assert "erf" not in [step.op for step in region.epilogue.steps]
    assert {op_name(part.node) for part in region.operands} >= {"erf"}


def widened(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return ((x @ w).float() + bias.float()).relu().to(x.dtype)


@pytest.mark.parametrize("shape", [(N,), (M, 1), (M, N), (1,)])
def test_copies_in_single_precision_are_not_made(shape: tuple[int, ...]) -> None:
    given = (
        torch.randn(M, K).bfloat16(),
        torch.randn(K, N).bfloat16(),
        torch.randn(shape).bfloat16(),
    )
    graph = make_fx(widened, select_decomp_table(), tracing_mode="fake")(*given).graph
    region = region_at(next(filter(is_gemm, graph.nodes)), pairs=False)
    (operand,) = region.operands
    assert (operand.node.op, region.epilogue.operands[0].dtype) == ("placeholder", "bfloat16")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_copies_that_round_are_made(dtype: torch.dtype) -> None:
    """Copies of another half precision than the product's, too: its kernels read only one."""
    given = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16(), torch.randn(N).to(dtype)
    graph = make_fx(widened, select_decomp_table(), tracing_mode="fake")(*given).graph
    region = region_at(next(filter(is_gemm, graph.nodes)), pairs=False)
    assert [(one.node.op, one.value.dtype) for one in region.operands] == [
        ("call_function", torch.float32)
    ]


def test_a_write_between_what_is_pulled_in_and_the_product() -> None:
    graph = fx.Graph()
    values = {"x": (M, K), "w": (K, N), "a": (M, N), "zero": (M, N)}
    nodes = {name: graph.placeholder(name) for name in values}
    calls = torch.ops.aten
    pulled = graph.call_function(calls.mul.Tensor, (nodes["a"], 3.0))
    written = graph.call_function(calls.copy_.default, (nodes["a"], nodes["zero"]))
    product = graph.call_function(calls.mm.default, (nodes["x"], nodes["w"]))
    total = graph.call_function(calls.add.Tensor, (product, pulled))
    graph.output((total,))
    for node in (pulled, written, product, total):
        node.meta["val"] = torch.empty(M, N).bfloat16()
    for name, node in nodes.items():
        node.meta["val"] = torch.empty(values[name]).bfloat16()
    with pytest.raises(NoRegion, match="written"):
        region_at(product, pairs=False)


def test_a_number_on_another_device_is_no_operand() -> None:
    """Eager takes a CPU tensor of one number beside CUDA tensors; a kernel cannot read it."""
    graph = fx.Graph()
    x, w, scale = map(graph.placeholder, ("x", "w", "scale"))
    product = graph.call_function(torch.ops.aten.mm.default, (x, w))
    scaled = graph.call_function(torch.ops.aten.mul.Tensor, (product, scale))
    twice = graph.call_function(torch.ops.aten.mul.Tensor, (product, 2.0))
    graph.output((scaled, twice))
    sizes = {x: (M, K), w: (K, N), product: (M, N), scaled: (M, N), twice: (M, N)}
    for node, size in sizes.items():
        node.meta["val"] = torch.empty(size, dtype=torch.bfloat16, device="meta")
    for device, taken in (("cpu", False), ("meta", True)):
        scale.meta["val"] = torch.empty((), dtype=torch.bfloat16, device=device)
        region = region_at(product, pairs=False)
        assert twice in region.nodes
        assert (scaled in region.nodes) == (OperandSlice(scale) in region.operands) == taken


@pytest.mark.parametrize("random", [False, True])
def test_random_draws_keep_their_order(random: bool) -> None:
    """What is moved behind the kernel would draw after what stands between."""
    graph = fx.Graph()
    x, w, scale = map(graph.placeholder, ("x", "w", "scale"))
    calls = torch.ops.aten
    product = graph.call_function(calls.mm.default, (x, w))
    early = graph.call_function((calls.bernoulli if random else calls.sort).default, (product,))
    total = graph.call_function(calls.sum.dim_IntList, (scale, [0]))
    last = graph.call_function(calls.mul.Tensor, (product, total))
    graph.output((early, last))
    sizes = {x: (M, K), w: (K, N), scale: (4, N), total: (N,)}
    for node in (x, w, scale, product, early, total, last):
        node.meta["val"] = torch.empty(sizes.get(node, (M, N)), dtype=torch.bfloat16)
    if random:
        with pytest.raises(NoRegion, match="random"):
            region_at(product, pairs=False)
    else:
        assert region_at(product, pairs=False).moved == (early,)
