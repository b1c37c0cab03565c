"""The kernels of GEMM regions compiled for devices that need not be there."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.graph.epilogue import Epilogue
from fusepass.kernels import gemm_region as kernel
from fusepass.kernels.gemm_tiles import Tile, tiles
from tests.kernels.test_gemm_region import DTYPES, EPILOGUES, inputs, needs_triton, single

GLUON = "triton.experimental.gluon._runtime"
# To compile a kernel takes seconds, and what an epilogue is written as hardly depends on the rest.
# No number of parameters is a multiple of these, so that one in so many has each of them.
sampled = pytest.mark.sampled


def compiled(
    epilogue: Epilogue, tile: Tile, capability: int, transposed: bool = True, batches: bool = False
) -> str:
    """PTX of a kernel for a device that need not be there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    x, weights, operands = inputs(epilogue, 16, 16, 32, DTYPES[tile.itemsize])
    if not transposed:
        weights = [w.contiguous() for w in weights]
    if batches:
        x, weights = x[None], [w[None] for w in weights]
    made = kernel.kernel(epilogue.text(), tile, batches)
    outputs = [torch.empty(1, dtype=getattr(torch, o.dtype)) for o in epilogue.outputs]
    values = x, *weights, *operands
    given = kernel.arguments(x, weights, operands, outputs, epilogue, values, tile, 2)
    (config,) = made.configs
    constants = {**config.kwargs, **{k: v for k, v in given.items() if isinstance(v, bool)}}
    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.bool: "i1"}
    signature = {
        parameter.name: "constexpr"
        if parameter.name in constants
        else f"*{names[given[parameter.name].dtype]}"
        if isinstance(given[parameter.name], Tensor)
        else "i32"
        for parameter in made.fn.params
    }
    language = importlib.import_module(GLUON).GluonASTSource if tile.groups else ASTSource
    constants = {(made.fn.arg_names.index(name),): value for name, value in constants.items()}
    source = language(made.fn, signature, constants)
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": tile.warps, "num_stages": min(tile.stages, 3)}
    return str(triton.compile(source, target=target, options=options).asm["ptx"])


@needs_triton
@sampled(11)
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("form", ["grid", "rows16", "rows64", "row"])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_it_compiles_without_a_gpu(name: str, capability: int, form: str, itemsize: int) -> None:
    epilogue = EPILOGUES[name] if itemsize == 2 else single(EPILOGUES[name])
    every = [tile for tile in tiles(epilogue).values() if tile.itemsize == itemsize]
    tile = next(tile for tile in every if (tile.form + str(tile.m)).startswith(form))
    assert "fusepass_gemm" in compiled(epilogue, tile, capability)


@needs_triton
@sampled(7)
@pytest.mark.parametrize("name", ["swiglu", "pair_and_more", "gelu", "gradient", "one_of_two"])
@pytest.mark.parametrize("form", ["grid", "pingpong", "cooperative"])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_it_needs_no_more_memory_than_it_says(
    name: str, form: str, itemsize: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    made: list[Any] = []
    epilogue = EPILOGUES[name] if itemsize == 2 else single(EPILOGUES[name])
    compiler = triton.compile

    def keep(*args: Any, **options: Any) -> Any:
        made.append(compiler(*args, **options))
        return made[-1]

    monkeypatch.setattr(triton, "compile", keep)
    every = [one for one in tiles(epilogue, 227 << 10).values() if one.itemsize == itemsize]
    tile = next(tile for tile in every if tile.form == form)
    tile = replace(tile, stages=3) if form == "grid" else tile  # as it is compiled here
    compiled(epilogue, tile, 90)
    assert 0 < made[-1].metadata.shared <= tile.bytes_needed(epilogue)


@needs_triton
@sampled(9)
@pytest.mark.parametrize(
    "name", ["swiglu", "gelu", "gelu_tanh", "gradient", "sums", "backward", "pair_and_more"]
)
@pytest.mark.parametrize("form", ["pingpong", "cooperative"])
@pytest.mark.parametrize("lies", ["(N, K)", "(K, N)"])
def test_it_compiles_for_hopper(name: str, form: str, lies: str) -> None:
    epilogue = EPILOGUES[name]
    transposed = lies == "(N, K)"
    tile = next(tile for tile in tiles(epilogue).values() if tile.form == form)
    ptx = compiled(epilogue, tile, 90, transposed)
    if transposed:
        alike = next(t for t in tiles(epilogue).values() if t.itemsize == 4 and t.form == form)
        assert ".f32.tf32.tf32" in compiled(single(epilogue), alike, 90)
    if not epilogue.reduced:
        assert ptx.count("wgmma.") == compiled(epilogue, tile, 90, transposed, True).count("wgmma.")
    assert "fusepass_gemm_hopper" in ptx
    assert "wgmma.mma_async" in ptx
    assert ptx.count("setmaxnreg") > 4  # its warps differ in what they do
    assert 0 < ptx.count("ex2.approx") <= 64 * tile.groups  # no more than half a tile
