"""The GEMM of few rows in CUDA C++ on a device: against torch, alike each time, through Inductor."""

from __future__ import annotations

import random
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

import fusepass
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.tiles import Tile, is_hopper, tiles
from fusepass.numerics import rms_error
from fusepass.patterns import gemm_region as rule
from fusepass.tune import Choice
from tests.gpu.test_gemm_region import Mlp, agrees, applied, choices, within
from tests.kernels.gemm.hopper.test_stream_source import ALL_KINDS, STREAMED
from tests.kernels.gemm.hopper.test_tile_source import operands_of
from tests.kernels.gemm.test_op import EPILOGUES, inputs

__all__ = ["choices"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("tf32"),
    pytest.mark.skipif(
        not (torch.cuda.is_available() and is_hopper(torch.device("cuda"))),
        reason="needs a Hopper device",
    ),
]


CUTS = {(64, 1), (64, 2), (48, 4), (56, 1), (32, 2)}  # columns, and blocks that share K


def streams(name: str) -> list[Tile]:
    every = tiles(EPILOGUES[name], 227 << 10).values()
    return [t for t in every if t.form == "stream" and (t.n, t.blocks) in CUTS]


CASES = [
    pytest.param(name, tile, id=f"{name}-{tile.name}")
    for name in STREAMED
    for tile in streams(name)
]
TILES = streams("plain")


@pytest.mark.parametrize(("name", "tile"), CASES)
def test_against_torch(name: str, tile: Tile) -> None:
    """With one step of K and many, with one tile and several for each block."""
    for m, n, k in ((tile.m, 520, 1032), (tile.m - 5, 8, 8), (1, 72, 136), (tile.m, 9000, 264)):
        for how in ("in order", "packed", "swapped")[: 1 if EPILOGUES[name].products == 1 else 3]:
            agrees(name, tile, (m, n, k), how)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_any_size(tile: Tile) -> None:
    draw = random.Random(tile.name)
    for _ in range(25):
        size = draw.randint(1, tile.m), 8 * draw.randint(1, 1500), 8 * draw.randint(1, 300)
        agrees(draw.choice(["gelu", "plain"]), tile, size, "in order")


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_operands_and_outputs_of_every_kind(tile: Tile) -> None:
    m, n, k = tile.m - 1, 520, 96
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randn(m, 2 * k, device="cuda")[:, :k].to(dtype)
        wide = torch.randn(n, k + 8, device="cuda").to(dtype)
        weight = wide[:, :k].t()
        operands = operands_of(m, n, "cuda")
        assert kernel.refuses(x, [weight], operands, ALL_KINDS) is None
        *got, truth = kernel.launch(x, [weight], operands, ALL_KINDS.text(), tile)
        *exact, wanted = kernel.reference(x, [weight], operands, ALL_KINDS)
        assert torch.equal(truth, wanted)
        assert [one.dtype for one in got] == [one.dtype for one in exact]
        for mine, theirs in zip(got, exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_infinities_and_nan(tile: Tile) -> None:
    epilogue = EPILOGUES["gelu"]
    x, weights, operands = inputs(epilogue, 8, 64, 64)
    x[3], x[5, 0], x[7, 0] = float("inf"), float("nan"), -float("inf")
    x, weights = x.cuda(), [w.t().cuda().t() for w in weights]
    operands = [one.cuda() for one in operands]
    got = kernel.launch(x, weights, operands, epilogue.text(), tile)
    want = kernel.reference(x, weights, operands, epilogue)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        assert torch.equal(mine.isnan(), theirs.isnan())


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_alike_on_two_streams_and_in_graphs(tile: Tile) -> None:
    """Blocks that share K add up in one order, whichever comes first; nothing stays from before."""
    epilogue = EPILOGUES["plain"]
    dtype = getattr(torch, epilogue.outputs[0].dtype)
    weight = torch.randn(5000, 2048, device="cuda").to(dtype).t()
    empty = kernel.launch(weight.new_empty(0, 2048), [weight], [], epilogue.text(), tile)
    assert [tuple(one.shape) for one in empty] == [(0, 5000)]
    given = [torch.randn(tile.m, 2048, device="cuda").to(dtype) for _ in range(2)]

    def run(x: Tensor) -> Tensor:
        return kernel.launch(x, [weight], [], epilogue.text(), tile)[0]

    want = [run(x) for x in given]
    side = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    for _ in range(20):
        got = []
        for stream, x in zip(side, given, strict=True):
            with torch.cuda.stream(stream):
                got.append(run(x))
        torch.cuda.synchronize()
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [run(x) for x in given]
    for _ in range(20):
        for one in made:
            one.zero_()
        graph.replay()
        assert all(torch.equal(one, other) for one, other in zip(made, want, strict=True))


@pytest.mark.gpu_alone
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_through_inductor(
    mode: str, blocks: int, choices: None, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called by Inductor's code, with its caches cold and warm; more rows are left to others."""
    tile = next(t for t in TILES if (t.m, t.blocks) == (16, blocks))
    two = next(t for t in streams("swiglu") if (t.m, t.blocks) == (16, blocks))
    names = {1: tile.candidate, 2: two.candidate}

    def taken(problem: object, *given: object) -> Choice:
        pair = getattr(problem, "op", "") == "gated_gemm"
        return Choice(names[1 + pair], {}, "forced", "a test asks for it")

    monkeypatch.setattr(rule, "choose", taken)
    module = Mlp(256, 520, packed=False).cuda().half()
    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(module, backend="fusepass", options={"mode": mode})
        for _ in range(3):
            x = torch.randn(13, 256, device="cuda", dtype=torch.float16)
            with torch.no_grad():
                eager, exact = module(x), deepcopy(module).double()(x.double())
                got, code = run_and_get_code(compiled, x)
            assert "gated_gemm" in applied(compiled), fusepass.last_report(compiled)
            assert rms_error(got, exact) <= 1.5 * rms_error(eager, exact)
            if code:
                assert any("'stream', 16" in text for text in code)


@pytest.mark.gpu_alone
def test_it_is_chosen_where_it_is_faster(choices: None) -> None:
    """A projection of one sequence's sixteen tokens: nothing of ours is forced here."""
    torch.compiler.reset()
    module = nn.Linear(4096, 6144, bias=False, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(module, backend="fusepass")
    with torch.no_grad():
        got, code = run_and_get_code(compiled, x)
        exact = deepcopy(module).double()(x.double())
    assert any("'stream', 16" in text for text in code)
    assert within([got], [exact], [module(x).detach()])
