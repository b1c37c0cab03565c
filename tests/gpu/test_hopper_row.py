"""The GEMM of one row in CUDA C++ on a device, and launches that begin early."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.hopper import launch
from fusepass.kernels.gemm.hopper.row_source import WIDEST
from fusepass.kernels.gemm.hopper.tile_source import TileKernel
from fusepass.kernels.gemm.tiles import Tile, is_hopper, tiles
from fusepass.numerics import rms_error
from fusepass.patterns import gemm_region as rule
from fusepass.torch_private.cuda import nvrtc
from fusepass.tune import Choice
from tests.gpu.test_gemm_region import Mlp, agrees, applied, choices
from tests.kernels.gemm.hopper.test_stream_source import ALL_KINDS, STREAMED
from tests.kernels.gemm.hopper.test_tile_source import operands_of
from tests.kernels.gemm.test_op import EPILOGUES

__all__ = ["choices"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("tf32"),
    pytest.mark.skipif(
        not (torch.cuda.is_available() and is_hopper(torch.device("cuda"))),
        reason="needs a Hopper device",
    ),
]


def tile_of(form: str, rows: int, name: str = "plain") -> Tile:
    every = tiles(EPILOGUES[name], 227 << 10).values()
    return next(tile for tile in every if (tile.form, tile.m) == (form, rows))


@pytest.mark.parametrize("name", STREAMED)
def test_against_torch(name: str) -> None:
    """With one column and several for each warp; with a piece of K, less, and many."""
    tile = tile_of("ring", 1, name)
    for n, k in ((8, 8), (520, 1032), (9000, 264), (1608, 2048), (72, WIDEST)):
        for how in ("in order", "packed", "swapped")[: 1 if EPILOGUES[name].products == 1 else 3]:
            agrees(name, tile, (1, n, k), how)


def test_any_size() -> None:
    draw = random.Random(0)
    for _ in range(15):
        size = 1, 8 * draw.randint(1, 50), 8 * draw.randint(1, 2000)
        agrees(draw.choice(["gelu", "plain"]), tile_of("ring", 1), size, "in order")


def test_operands_and_outputs_of_every_kind() -> None:
    n, k, tile = 520, 1096, tile_of("ring", 1)
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randn(1, k, device="cuda").to(dtype)
        wide = torch.randn(n, k + 8, device="cuda").to(dtype) / 32
        weight, operands = wide[:, :k].t(), operands_of(1, n, "cuda")
        assert kernel.refuses(x, [weight], operands, ALL_KINDS) is None
        *got, truth = kernel.launch(x, [weight], operands, ALL_KINDS.text(), tile)
        *exact, wanted = kernel.reference(x, [weight], operands, ALL_KINDS)
        assert torch.equal(truth, wanted)
        assert [one.dtype for one in got] == [one.dtype for one in exact]
        for mine, theirs in zip(got, exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_row_kernel_with_nonfinite_values(value: float) -> None:
    """A value in x reaches every column, one in a weight a single column."""
    tile, text = tile_of("ring", 1), EPILOGUES["plain"].text()
    dtype = getattr(torch, EPILOGUES["plain"].outputs[0].dtype)
    x = torch.rand(1, 2056, device="cuda").to(dtype) + 1
    weight = torch.rand(1000, 2056, device="cuda").to(dtype)
    weight[77, 2050] = value
    (got,) = kernel.launch(x, [weight.t()], [], text, tile)
    assert (~got.isfinite()).nonzero().tolist() == [[0, 77]]
    x[0, 2055] = value
    (got,) = kernel.launch(x, [weight.t()], [], text, tile)
    assert not got.isfinite().any()


OVERLAPPING = [
    tile
    for tile in tiles(EPILOGUES["plain"], 227 << 10).values()
    if tile.form == "ring" or (tile.form == "stream" and tile.m in (8, 16, 128) and tile.n != 48)
]


@pytest.mark.parametrize("tile", OVERLAPPING, ids=lambda tile: tile.name)
def test_one_that_begins_early_computes_the_same(tile: Tile) -> None:
    """Behind nothing: of fewer steps of K than blocks share, of more tiles than there are blocks."""
    cut = tile.cuda
    assert cut is not None
    assert not isinstance(cut, TileKernel)
    text = EPILOGUES["plain"].text()
    for n, k in ((72, 64), (8, 256), (520, 384), (9000, 512), (20000, 136), (4096, 4104)):
        x = torch.randn(tile.m, k, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
        want = launch.launch(x, [weight], [], text, cut)
        for _ in range(3):
            early = replace(cut, early=True, leads=True)
            got = launch.launch(x, [weight], [], text, early)
            assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def assert_the_same_each_time(call: Callable[[], None], result: Tensor, *, graphed: bool) -> None:
    """That hundreds of calls, each alone or in a CUDA graph, leave the result there is now."""
    want = result.clone()
    graph = torch.cuda.CUDAGraph()
    if graphed:
        with torch.cuda.graph(graph):
            call()
    for _ in range(300):
        result.zero_()
        graph.replay() if graphed else call()
        assert torch.equal(result, want)


@pytest.mark.parametrize("first", [(1, "row"), (1, "ring"), (8, "stream")], ids=str)
@pytest.mark.parametrize("second", [(1, "ring"), (8, "stream")], ids=str)
@pytest.mark.parametrize("graphed", [False, True])
def test_it_waits_for_what_is_in_front(
    first: tuple[int, str], second: tuple[int, str], graphed: bool
) -> None:
    """A pair, and a product of its result that may begin with it, hundreds of times.

    A small product begins long before the end of a large pair; its results would tell. Between them
    and before the next pair the memory of the pair's result is overwritten.
    """
    k, hidden, n = 4096, 14336, 256
    dtype = torch.bfloat16
    draw = torch.Generator("cuda").manual_seed(0)
    gate, up, down = (
        (torch.randn(shape, device="cuda", generator=draw) / shape[1] ** 0.5).to(dtype)
        for shape in ((hidden, k), (hidden, k), (n, hidden))
    )
    pair, behind = tile_of(first[1], first[0], "swiglu"), tile_of(second[1], second[0])
    swiglu, plain = EPILOGUES["swiglu"], EPILOGUES["plain"]
    rows = 1
    x = torch.randn(rows, k, device="cuda", generator=draw).to(dtype)
    h = [x.new_empty(rows, hidden) for _ in swiglu.outputs]
    y = x.new_empty(rows, n)
    weights = [gate.t(), up.t()]

    def runs(tile: Tile) -> Callable[[], None]:
        """The pair, letting what is behind it begin."""
        if tile.cuda is None:
            made = kernel.kernel(swiglu.text(), tile, leads=True)
            given = kernel.arguments(x, weights, [], h, swiglu, (x, *weights), tile, 0)
            return lambda: made[(-(-hidden // tile.n),)](**given)
        assert not isinstance(tile.cuda, TileKernel)
        cut = launch.numbers_of(replace(tile.cuda, leads=True))
        of = swiglu.text(), cut, "bfloat16", (hidden, k), (k, k), 0
        fill = launch.make_launcher(*of)
        return lambda: fill(rows, x, gate, up, *h)

    assert behind.cuda is not None
    assert not isinstance(behind.cuda, TileKernel)
    cut = launch.numbers_of(replace(behind.cuda, early=True))
    fill = launch.make_launcher(plain.text(), cut, "bfloat16", (n, hidden), (hidden,) * 2, 0)
    one = runs(pair)

    def both() -> None:
        h[0].fill_(float("nan"))
        one()
        fill(rows, h[0], down, y)

    assert nvrtc.begins_early()
    both()
    assert torch.equal(h[0].double(), h[0].double())  # not NaN
    torch.testing.assert_close(y.double(), h[0].double() @ down.double().t(), rtol=0.05, atol=0.05)
    assert_the_same_each_time(both, y, graphed=graphed)


class TwoLayers(nn.Module):
    """A layer of one token whose norm is part of its products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(1024)
        self.layers = nn.ModuleList(Mlp(1024, 2048, packed=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(self.norm(x))
        return x


@pytest.mark.gpu_alone
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("rows", [1, 13])
def test_through_inductor(
    mode: str, rows: int, choices: None, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole MLP: the second product begins early; its weights may change between calls."""
    form = ("ring", 1) if rows == 1 else ("stream", 16)
    names = {1: tile_of(*form).candidate, 2: tile_of("row", 1, "swiglu").candidate}
    if rows > 1:
        names[2] = tile_of("stream", 16, "swiglu").candidate

    def taken(problem: object, *given: object) -> Choice:
        pair = getattr(problem, "op", "") == "gated_gemm"
        return Choice(names[1 + pair], {}, "forced", "a test asks for it")

    monkeypatch.setattr(rule, "choose", taken)
    counters.clear()
    module = Mlp(1024, 2048, packed=False).cuda().bfloat16()
    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(module, backend="fusepass", options={"mode": mode})
        for _ in range(6):
            with torch.no_grad():
                module.down.weight.mul_(-1.25)  # by a kernel in front of the compiled code's
                x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16)
                got, code = run_and_get_code(compiled, x)
                eager, exact = module(x), deepcopy(module).double()(x.double())
            assert "gated_gemm" in applied(compiled)
            assert rms_error(got, exact) <= 1.5 * rms_error(eager, exact)
            if code:
                begins = "'row', 2048, 3, 12, True" if rows == 1 else ", 1, True, False)"
                assert any(begins in text for text in code)
                assert rows > 1 or any("griddepcontrol.launch_dependents" in text for text in code)
    assert counters["inductor"]["cudagraph_skips"] == 0  # as where a kernel seems to write x


@pytest.mark.gpu_alone
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_layers_in_a_row(mode: str, choices: None, cache_dir: Path) -> None:
    """Nothing forced: whatever is chosen and overlaps, results are eager's, call for call."""
    torch.compiler.reset()
    module = TwoLayers().cuda().bfloat16()
    compiled = torch.compile(module, backend="fusepass", options={"mode": mode})
    for _ in range(20):
        with torch.no_grad():
            for layer in module.layers:
                layer.down.weight.mul_(-1.02)
            x = torch.randn(1, 1024, device="cuda", dtype=torch.bfloat16)
            got, eager = compiled(x).clone(), module(x)
            exact = deepcopy(module).double()(x.double())
        assert rms_error(got, exact) <= 1.5 * rms_error(eager, exact)
