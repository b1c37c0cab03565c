"""The GEMM in CUDA C++ on a device: against torch, in any order of launches, through Inductor."""

from __future__ import annotations

import random
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.tiles import Tile, is_hopper, tiles
from fusepass.numerics import rms_error
from fusepass.patterns import gemm_region as rule
from fusepass.tune import Choice
from tests.gpu.test_gemm_region import Mlp, agrees, applied, choices, exact_and_eager, within
from tests.kernels.gemm.hopper.test_tile_source import EVERYTHING, STORED, operands_of
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
CUDA = [
    pytest.param(name, tile, id=f"{name}-{tile.name}")
    for name, epilogue in STORED.items()
    for tile in tiles(epilogue, 227 << 10).values()
    if tile.form in ("joint", "turns")
]
SIZES = [(300, 136, 72), (257, 1032, 1000), (8, 16, 16), (128, 128, 320), (4200, 2064, 208)]
TILES = [t for t in tiles(EPILOGUES["plain"], 227 << 10).values() if t.form in ("joint", "turns")]


@pytest.mark.parametrize(("name", "tile"), CUDA)
def test_against_torch(name: str, tile: Tile) -> None:
    """From one tile to several for each group of warps; rings that wrap at any place."""
    for size in SIZES:
        for how in ("in order", "packed", "swapped")[: 1 if EPILOGUES[name].products == 1 else 3]:
            agrees(name, tile, size, how)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_any_size(tile: Tile) -> None:
    draw = random.Random(tile.name)
    for _ in range(25):
        size = draw.randint(1, 700), 8 * draw.randint(1, 90), 8 * draw.randint(1, 140)
        agrees(draw.choice(["gelu", "plain"]), tile, size, "in order")


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_operands_of_every_kind(tile: Tile) -> None:
    m, n, k = 300, 520, 96
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randn(m, 2 * k, device="cuda")[:, :k].to(dtype)
        wide = torch.randn(n, k + 8, device="cuda").to(dtype)
        weight = wide[:, :k].t()
        operands = operands_of(m, n, "cuda")
        assert kernel.refuses(x, [weight], operands, EVERYTHING) is None
        got = kernel.launch(x, [weight], operands, EVERYTHING.text(), tile)
        assert within(got, *exact_and_eager(EVERYTHING, x, [weight], operands))


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_infinities_and_nan(tile: Tile) -> None:
    epilogue = EPILOGUES["gelu"]
    x, weights, operands = inputs(epilogue, 64, 64, 64)
    x[3], x[5, 0], x[7, 0] = float("inf"), float("nan"), -float("inf")
    x, weights = x.cuda(), [w.t().cuda().t() for w in weights]
    operands = [one.cuda() for one in operands]
    got = kernel.launch(x, weights, operands, epilogue.text(), tile)
    want = kernel.reference(x, weights, operands, epilogue)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        assert torch.equal(mine.isnan(), theirs.isnan())


def test_zero_rows_and_two_streams() -> None:
    """Nothing is launched for nothing; launches at once do not disturb each other."""
    epilogue, tile = EPILOGUES["plain"], TILES[0]
    dtype = getattr(torch, epilogue.outputs[0].dtype)
    weight = torch.randn(520, 256, device="cuda").to(dtype).t()
    empty = kernel.launch(weight.new_empty(0, 256), [weight], [], epilogue.text(), tile)
    assert [tuple(one.shape) for one in empty] == [(0, 520)] * len(empty)
    given = [torch.randn(2000, 256, device="cuda").to(dtype) for _ in range(2)]
    want = [kernel.launch(x, [weight], [], epilogue.text(), tile)[0] for x in given]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    for _ in range(20):
        got = []
        for stream, x in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                got.append(kernel.launch(x, [weight], [], epilogue.text(), tile)[0])
        torch.cuda.synchronize()
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


@pytest.mark.gpu_alone
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_through_inductor(
    mode: str, tile: Tile, choices: None, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called by Inductor's code, with its caches cold and warm, and of rows that vary."""
    taken = Choice(tile.candidate, {}, "forced", "a test asks for it")
    monkeypatch.setattr(rule, "choose", lambda *given: taken)
    module = Mlp(256, 520, packed=False).cuda().half()
    for dynamic in (False, True)[: 2 if mode == "default" else 1]:
        for _ in range(2):
            torch.compiler.reset()
            options = {"mode": mode}
            compiled = torch.compile(module, backend="fusepass", options=options, dynamic=dynamic)
            for rows in (100, 33, 77) if dynamic else (100, 100, 100):
                x = torch.randn(4, rows, 256, device="cuda", dtype=torch.float16)
                with torch.no_grad():
                    eager, exact = module(x), deepcopy(module).double()(x.double())
                    got, code = run_and_get_code(compiled, x)
                assert "gated_gemm" in applied(compiled)
                assert rms_error(got, exact) <= 1.5 * rms_error(eager, exact)
                if code:
                    assert any("fusepass.kernels.gemm.hopper.launch" in text for text in code)


@pytest.mark.gpu_alone
def test_gradients(choices: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is taken where the result and what the backward wants leave together."""
    tile = next(tile for tile in TILES if tile.form == "joint")
    taken = Choice(tile.candidate, {}, "forced", "a test asks for it")
    monkeypatch.setattr(rule, "choose", lambda *given: taken)
    module = nn.Linear(256, 520).cuda().bfloat16()
    x = torch.randn(300, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    compiled = torch.compile(lambda one: F.silu(module(one)), backend="fusepass")
    given = [x, *module.parameters()]

    def gradients(inputs: list[Tensor], made: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(made.float().square().sum(), inputs))

    mine = gradients(given, compiled(x))
    assert "gemm_epilogue" in applied(compiled)
    eager = gradients(given, F.silu(module(x)))
    double = deepcopy(module).double()
    wide = x.detach().double().requires_grad_()
    exact = gradients([wide, *double.parameters()], F.silu(double(wide)))
    for one, other, true in zip(mine, eager, exact, strict=True):
        assert rms_error(one, true) <= 2 * rms_error(other, true)
