"""GEMM regions on the device: the kernel's numbers, and whole layers through Inductor."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

import fusepass
from fusepass import tune
from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm import tiles as gemm_tiles
from fusepass.kernels.gemm import triton_source
from fusepass.kernels.gemm.baseline import reduce_partial_results
from fusepass.kernels.gemm.tiles import Tile, tiles
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from fusepass.patterns import gemm_region
from fusepass.patterns import gemm_region as rule
from fusepass.torch_private.inductor import kernel_call
from fusepass.tune.decide import Choice
from tests.kernels.gemm.test_op import (
    DTYPES,
    EPILOGUES,
    batches_of,
    exact_and_eager,
    inputs,
    single,
    within,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tf32")]
GRID = {
    products: [
        tile
        for tile in tiles(EPILOGUES[name]).values()
        if tile.form == "grid" and tile.itemsize == 2
    ]
    for products, name in ((1, "plain"), (2, "swiglu"))
}
SKINNY = [
    pytest.param(name, tile, id=f"{name}-{tile.name}")
    for name, epilogue in EPILOGUES.items()
    for tile in tiles(epilogue).values()
    if tile.plain
]
HOPPER = [
    pytest.param(name, tile, id=f"{name}-{tile.name}")
    for name in "swiglu gelu plain gradient sums backward one_of_two pair_and_more".split()
    for itemsize, epilogue in ((2, EPILOGUES[name]), (4, single(EPILOGUES[name])))
    for tile in tiles(epilogue, 227 << 10).values()
    if tile.groups and tile.itemsize == itemsize
]
SIZES = [(300, 136, 72), (257, 1032, 1000)]
on_hopper = pytest.mark.skipif(
    not gemm_tiles.on_hopper(torch.device("cuda")) if torch.cuda.is_available() else True,
    reason="needs a Hopper device",
)
untested = pytest.mark.skipif(
    not kernel_call.kernel_calls_tested(), reason="not used with this version of torch"
)


@pytest.fixture
def choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table of choices of its own."""
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    tune.reset()
    yield
    tune.reset()


def agrees(name: str, tile: Tile, size: tuple[int, int, int], how: str) -> None:
    """The error of one row is that of several: of a few numbers, eager's may be none by chance."""
    draws = [results(name, tile, size, how, seed) for seed in range(16 if size[0] == 1 else 1)]
    ways = zip(*draws, strict=True)
    assert within(*([torch.cat(each) for each in zip(*way, strict=True)] for way in ways))


def results(
    name: str, tile: Tile, size: tuple[int, int, int], how: str, seed: int
) -> list[list[Tensor]]:
    """The kernel's outputs, in fp64, and as single operations give them; flat."""
    epilogue, dtype = EPILOGUES[name], DTYPES[tile.itemsize]
    if tile.itemsize == 4:
        epilogue = single(epilogue)
        how = "in order" if how == "rows" else how
    x, weights, operands = inputs(epilogue, *size, dtype, seed)
    x, operands = x.cuda(), [one.cuda() for one in operands]
    if how == "packed":
        packed = torch.cat([one.t() for one in weights]).cuda().t()
        weights = list(packed.chunk(2, dim=1))
    else:
        held = sorted((w.t().cuda().t() for w in weights), key=Tensor.data_ptr)
        weights = held[::-1] if how == "swapped" else held
        weights = [w.contiguous() for w in weights] if how == "rows" else weights
    assert kernel.refuses(x, weights, operands, epilogue) is None
    got = reduce_partial_results(
        epilogue, kernel.launch(x, weights, operands, epilogue.text(), tile)
    )
    ways = got, *exact_and_eager(epilogue, x, weights, operands)
    return [[one.flatten() for one in way] for way in ways]


@pytest.mark.parametrize("tile", GRID[2][:2], ids=lambda tile: tile.name)
@pytest.mark.parametrize("how", ["in order", "swapped", "packed"])
def test_a_pair(tile: Tile, how: str) -> None:
    agrees("swiglu", tile, SIZES[0], how)


@pytest.mark.parametrize("name", ["gelu", "masked", "gradient", "loss"])
@pytest.mark.parametrize("how", ["in order", "rows"])
def test_one_product(name: str, how: str) -> None:
    for size in SIZES:
        agrees(name, GRID[1][0], size, how)


@pytest.mark.parametrize(("name", "how"), [("gelu", "rows"), ("swiglu", "packed")])
def test_single_precision(name: str, how: str) -> None:
    tile = GRID[EPILOGUES[name].products][1]  # results have room
    for size in SIZES:
        agrees(name, replace(tile, k=tile.k // 2, itemsize=4), size, how)


@on_hopper
@pytest.mark.parametrize(("name", "tile"), HOPPER)
def test_warps_that_load_and_warps_that_multiply(name: str, tile: Tile) -> None:
    """From one tile to several for each group of warps; rings that wrap at any place."""
    for size in (SIZES[0], (8, 16, 16), (128, 128, 320), (129, 144, 2064), (4200, 2064, 208)):
        for how in ("in order", "rows", "packed")[: 1 + EPILOGUES[name].products]:
            agrees(name, tile, size, how)


OVERLAPPING = [
    pytest.param(*one.values, which, id=f"{one.id}-{which}")
    for one in HOPPER
    for which in ("x", "x of one row", "weights", "an operand")
    if one.values[0] == "gelu" or (one.values[0] == "swiglu" and which != "an operand")
]


@on_hopper
@pytest.mark.parametrize(("name", "tile", "which"), OVERLAPPING)
def test_rows_that_overlap(name: str, tile: Tile, which: str) -> None:
    """The driver makes no descriptors of such matrices, the kernel does; but these do not round."""
    epilogue = EPILOGUES[name] if tile.itemsize == 2 else single(EPILOGUES[name])
    for m, n, k in (SIZES[0], (4200, 264, 208)):
        x, weights, operands = inputs(epilogue, m, n, k, DTYPES[tile.itemsize])
        x, operands = x.cuda(), [one.cuda() for one in operands]
        weights = [w.t().cuda().t() for w in weights]
        if which == "weights":
            rooms = [torch.randn(16 * n + k, device="cuda").to(x.dtype) for _ in weights]
            weights = [room.as_strided((k, n), (1, 16)) for room in rooms]
        elif which == "an operand":
            room = torch.randn(16 * m + n, device="cuda").to(x.dtype)
            operands[1] = room.as_strided((m, n), (16, 1))
        else:
            room, apart = torch.randn(16 * m + k, device="cuda").to(x.dtype), 16 * (which == "x")
            x = room.as_strided((m, k), (apart, 1))
        assert kernel.refuses(x, weights, operands, epilogue) is None
        assert not kernel.by_host((x, *weights, *operands), epilogue)
        if tile.rounds_by_host:
            with pytest.raises(ValueError, match="TF32"):
                kernel.launch(x, weights, operands, epilogue.text(), tile)
            continue
        got = kernel.launch(x, weights, operands, epilogue.text(), tile)
        assert within(got, *exact_and_eager(epilogue, x, weights, operands))


BATCHES = [
    pytest.param(name, tile, id=f"{name}-{tile.name}")
    for name in "swiglu gelu masked".split()
    for tile in tiles(EPILOGUES[name], 227 << 10).values()
    if tile.itemsize == 2 and (name != "masked" or not tile.groups)  # whose results are fp32
]


SOME_BATCHES = [(1, 40, 136, 72), (3, 129, 264, 208), (140, 8, 16, 16), (5, 400, 520, 64)]


@on_hopper
@pytest.mark.parametrize(("name", "tile"), BATCHES)
def test_batches(name: str, tile: Tile) -> None:
    epilogue = EPILOGUES[name]
    for count, rows, n, k in (
        (1, 40, 136, 72),
        (3, 129, 264, 208),
        (140, 8, 16, 16),
        (5, 400, 520, 64),
    ):
        m = min(rows, tile.m) if tile.plain else rows
        x, weights, operands = batches_of(count, m, epilogue, n, k, torch.bfloat16)
        x, operands = x.cuda(), [one.cuda() for one in operands]
        for transposed in (True, False):
            held = [(w.mT.cuda().mT if transposed else w.cuda().contiguous()) for w in weights]
            if not tile.takes(m, held, epilogue):
                continue
            assert kernel.refuses(x, held, operands, epilogue) is None
            got = kernel.launch(x, held, operands, epilogue.text(), tile)
            assert within(got, *exact_and_eager(epilogue, x, held, operands))


@pytest.mark.parametrize(("name", "tile"), SKINNY)
def test_few_rows(name: str, tile: Tile) -> None:
    for n, k in ((136, 72), (1032, 1000), (8, 4104)):
        for m in {tile.m, (tile.m + 1) // 2}:
            agrees(name, tile, (m, n, k), "packed" if n == 136 and name == "swiglu" else "in order")


def test_weights_too_far_apart_for_one_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    near = triton_source._PAIR.replace("(1 << 38)", "(1 << 1)")
    assert near != triton_source._PAIR
    monkeypatch.setattr(triton_source, "_PAIR", near)
    kernel.kernel.cache_clear()
    try:
        for how in ("in order", "swapped"):
            agrees("swiglu", GRID[2][0], SIZES[0], how)
    finally:
        kernel.kernel.cache_clear()


@pytest.mark.parametrize(
    "tile",
    [
        GRID[1][0],
        *(one for one in tiles(single(EPILOGUES["gelu"]), 227 << 10).values() if one.itemsize == 4),
    ],
    ids=lambda tile: tile.name,
)
def test_infinities_and_nan(tile: Tile) -> None:
    if tile.groups and not gemm_tiles.on_hopper(torch.device("cuda")):
        pytest.skip("needs a Hopper device")
    half, rows = EPILOGUES["gelu"], tile.m if tile.plain else 64
    epilogue = half if tile.itemsize == 2 else single(half)
    x, weights, operands = inputs(epilogue, rows, 64, 64, DTYPES[tile.itemsize])
    x[0, 2] = float("nan")
    if tile.itemsize == 4:
        x.view(torch.int32)[0, 2] = 0x7FFFFFFF  # as devices write it
    if rows > 1:
        x[3], x[5, 0], x[7, 0] = float("inf"), float("nan"), -float("inf")
    x, weights = x.cuda(), [w.t().cuda().t() for w in weights]
    operands = [one.cuda() for one in operands]
    got = kernel.launch(x, weights, operands, epilogue.text(), tile)
    want = kernel.reference(x, weights, operands, epilogue)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        assert torch.equal(mine.isnan(), theirs.isnan())


class Mlp(nn.Module):
    """A gated MLP of two weights, or of one packed weight."""

    def __init__(self, width: int, hidden: int, *, packed: bool) -> None:
        super().__init__()
        if packed:
            self.both = nn.Linear(width, 2 * hidden, bias=False)
        else:
            self.gate = nn.Linear(width, hidden, bias=False)
            self.up = nn.Linear(width, hidden, bias=False)
        self.down, self.packed = nn.Linear(hidden, width, bias=False), packed

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1) if self.packed else (self.gate(x), self.up(x))
        return self.down(F.silu(gate) * up)


def applied(compiled: Any) -> list[str]:
    return [d.rule for d in fusepass.last_report(compiled).decisions if d.outcome == "applied"]


@untested
@pytest.mark.gpu_alone
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_gated_mlp(mode: str, packed: bool, choices: None) -> None:
    """At this size the kernel is faster by a sixth: it must be taken, and be right."""
    module = Mlp(1024, 4096, packed=packed).cuda().bfloat16()
    x = torch.randn(8192, 1024, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(module, backend="fusepass", options={"mode": mode})
    with torch.no_grad():
        for _ in range(3):
            got = compiled(x).clone()
        eager, exact = module(x), module.double()(x.double())
    assert "gated_gemm" in applied(compiled), fusepass.last_report(compiled)
    bound = error_bound(half_ulp(got.dtype, rms(exact)), rms_error(eager, exact), None)
    assert passes(rms_error(got, exact), bound)


@untested
@on_hopper
@pytest.mark.gpu_alone
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize(
    ("name", "tile"),
    [
        pytest.param(name, tile, id=f"{name}-{tile.name}")
        for name, tile in (one.values for one in HOPPER)
        if name == "swiglu"
    ],
)
def test_gluon_through_inductor(
    name: str,
    tile: Tile,
    mode: str,
    choices: None,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiled in Inductor's processes and launched by its code; again with its caches warm."""
    taken = Choice(f"triton {tile.name}", {}, "forced", "a test asks for it")
    monkeypatch.setattr(rule, "choose", lambda *given: taken)
    dtype = torch.float16 if tile.itemsize == 2 else torch.float32
    module = Mlp(256, 520, packed=False).cuda().to(dtype)
    rows = 13 if tile.few_rows else 100
    x = torch.randn(4, rows, 256, device="cuda", dtype=dtype)
    with torch.no_grad():
        eager, exact = module(x), deepcopy(module).double()(x.double())
        for _ in range(2):
            torch.compiler.reset()
            compiled = torch.compile(module, backend="fusepass", options={"mode": mode})
            (got, *_), code = run_and_get_code(
                lambda one: [one(x).clone() for _ in range(3)], compiled
            )
            assert "gated_gemm" in applied(compiled), fusepass.last_report(compiled)
            assert rms_error(got, exact) <= 1.5 * rms_error(eager, exact)
            assert any("fusepass_gemm" in text and "warp_specialize" in text for text in code)


class Experts(nn.Module):
    """A gated layer for each of some experts, weights as (K, N)."""

    def __init__(self, count: int, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(count, width, hidden) / width**0.5)
        self.up = nn.Parameter(torch.randn(count, width, hidden) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up)


@untested
@on_hopper
@pytest.mark.gpu_alone
@pytest.mark.parametrize("dynamic", [False, True])
def test_experts_through_inductor(
    dynamic: bool, choices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "triton cooperative128x128x64w8s6"
    monkeypatch.setattr(rule, "choose", lambda *given: Choice(name, {}, "forced", "a test"))
    module = Experts(4, 256, 520).cuda().half()
    compiled = torch.compile(module, backend="fusepass")
    for rows in (200, 333):
        x = torch.randn(4, rows, 256, device="cuda", dtype=torch.float16)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 1)
        got = compiled(x)
        assert "gated_gemm" in applied(compiled), fusepass.last_report(compiled)
        eager, exact = module(x), deepcopy(module).double()(x.double())
        assert rms_error(got, exact) <= 1.5 * rms_error(eager, exact)
        given = list(module.parameters())
        grads = [torch.autograd.grad(out.float().square().sum(), given) for out in (got, eager)]
        for mine, theirs in zip(*grads, strict=True):
            assert float((mine - theirs).float().norm()) <= 0.02 * float(theirs.float().norm())


@untested
@pytest.mark.gpu_alone
def test_training_and_sizes_that_vary(choices: None) -> None:
    module = Mlp(1024, 4096, packed=False).cuda().bfloat16()
    compiled = torch.compile(module, backend="fusepass", dynamic=True)
    for rows in (4096, 77, 300):
        x = torch.randn(2, rows, 1024, device="cuda", dtype=torch.bfloat16)
        grads = []
        for one in (compiled, module):
            loss = one(x).float().square().mean()
            grads.append([loss.detach(), *torch.autograd.grad(loss, list(module.parameters()))])
        for mine, theirs in zip(*grads, strict=True):
            assert float((mine - theirs).float().norm()) <= 0.02 * float(theirs.float().norm())
    assert "gated_gemm" in applied(compiled), fusepass.last_report(compiled)


def test_candidate_with_a_separate_sum() -> None:
    """What the candidate that has the sum apart from the product computes, however weights lie."""
    epilogue = Epilogue(
        1,
        (EpilogueOperand("full", "bfloat16"),),
        (EpilogueStep("add", ("%1", "%0")),),
        (Output("%2", "bfloat16"),),
    )
    assert gemm_region.is_sum(epilogue)
    for how in ("in order", "rows"):
        x, (weight,), (other,) = inputs(epilogue, 136, 64, 48, torch.bfloat16)
        weight = weight.cuda().contiguous() if how == "rows" else weight.t().cuda().t()
        got = gemm_region.sum_apart(epilogue).run(x.cuda(), weight, other.cuda())
        assert within(got, *exact_and_eager(epilogue, x.cuda(), [weight], [other.cuda()]))
