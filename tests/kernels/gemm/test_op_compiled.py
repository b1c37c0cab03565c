"""The kernels of GEMM regions compiled for devices that need not be there."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.hopper.tma_plan import tma_operands
from fusepass.kernels.gemm.tiles import Tile, tiles
from fusepass.torch_private.cuda.tma_descriptors import TF32, Matrix, round_to_tf32
from tests.kernels.gemm.test_op import DTYPES, EPILOGUES, inputs, needs_triton, single

GLUON = "triton.experimental.gluon._runtime"
PARAMETER = r"\.param \.align (?:64|128) \.b8 \w+\[128\]"  # of PTX, a descriptor
# To compile a kernel takes seconds, and what an epilogue is written as hardly depends on the rest.
# No number of parameters is a multiple of these, so that one in so many has each of them.
sampled = pytest.mark.sampled


def compiled(
    epilogue: Epilogue, tile: Tile, capability: int, transposed: bool = True, batches: bool = False
) -> str:
    """PTX of a kernel for a device that need not be there."""
    return str(binary_of(epilogue, tile, capability, transposed, batches).asm["ptx"])


def binary_of(
    epilogue: Epilogue,
    tile: Tile,
    capability: int,
    transposed: bool = True,
    batches: bool = False,
    hosted: bool = False,
    leads: bool = False,
) -> Any:
    """The same as Triton's compiler gives it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    x, weights, operands = inputs(epilogue, 16, 16, 32, DTYPES[tile.itemsize])
    if not transposed:
        weights = [w.contiguous() for w in weights]
    if batches:
        x, weights = x[None], [w[None] for w in weights]
    made = kernel.kernel(epilogue.text(), tile, batches, hosted, leads)
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
    if hosted:
        of = tma_operands(epilogue, tile.m, tile.n, tile.k, transposed)
        for name, (*_, shape, _) in of.items():
            signature[name] = descriptor_of(names[given[name].dtype], given[name].dtype, shape)
    language = importlib.import_module(GLUON).GluonASTSource if tile.groups else ASTSource
    constants = {(made.fn.arg_names.index(name),): value for name, value in constants.items()}
    source = language(made.fn, signature, constants)
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": tile.warps, "num_stages": min(tile.stages, 3)}
    return triton.compile(source, target=target, options=options)


def descriptor_of(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> str:
    """The type of a descriptor that takes tiles of a shape."""
    from triton.experimental.gluon import language as gl

    element = getattr(gl, str(dtype).removeprefix("torch."))
    layout = gl.NVMMASharedLayout.get_default_for(list(shape), element)
    return f"tensordesc<{name}{list(shape)},{layout!r}>"


@needs_triton
@sampled(31)
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("form", ["grid", "rows16", "rows64", "row"])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_it_compiles_without_a_gpu(name: str, capability: int, form: str, itemsize: int) -> None:
    epilogue = EPILOGUES[name] if itemsize == 2 else single(EPILOGUES[name])
    every = [tile for tile in tiles(epilogue).values() if tile.itemsize == itemsize]
    tile = next(tile for tile in every if (tile.form + str(tile.m)).startswith(form))
    assert "fusepass_gemm" in compiled(epilogue, tile, capability)


@pytest.mark.sampled(2)
@needs_triton
@pytest.mark.parametrize("name", ["swiglu", "gelu"])
@pytest.mark.parametrize("form", ["row", "rows"])
def test_one_that_lets_the_next_begin_says_so_first(name: str, form: str) -> None:
    """Once, in front of what it reads; it is read as ever."""
    epilogue = EPILOGUES[name]
    tile = next(one for one in tiles(epilogue).values() if one.form == form and one.itemsize == 2)
    first, alone = (
        binary_of(epilogue, tile, 90, leads=leads).asm["ptx"] for leads in (True, False)
    )
    assert first.count("griddepcontrol.launch_dependents") == 1
    assert first.index("griddepcontrol.launch_dependents") < first.index("ld.global")
    assert "griddepcontrol" not in alone
    reads = re.compile(r"(?:ld\.global|cp\.async)\.[\w:.]+")
    assert sorted(reads.findall(first)) == sorted(reads.findall(alone))


@needs_triton
@sampled(17)
@pytest.mark.parametrize("name", ["swiglu", "pair_and_more", "gelu", "gradient", "one_of_two"])
@pytest.mark.parametrize("form", ["grid", "pingpong", "cooperative"])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_it_needs_no_more_memory_than_it_says(name: str, form: str, itemsize: int) -> None:
    epilogue = EPILOGUES[name] if itemsize == 2 else single(EPILOGUES[name])
    every = [one for one in tiles(epilogue, 227 << 10).values() if one.itemsize == itemsize]
    tile = next(tile for tile in every if tile.form == form)
    tile = replace(tile, stages=3) if form == "grid" else tile  # as it is compiled here
    for hosted in (False, True)[: 1 + bool(tile.groups)]:
        made = binary_of(epilogue, tile, 90, hosted=hosted)
        assert 0 < made.metadata.shared <= tile.bytes_needed(epilogue)


@needs_triton
@sampled(17)
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
    assert ("m64n64k16" in ptx) == (tile.tail(epilogue) > 0)  # instructions of half a tile
    assert "fusepass_gemm_hopper" in ptx
    assert "wgmma.mma_async" in ptx
    assert ptx.count("setmaxnreg") > 4  # its warps differ in what they do
    assert 0 < ptx.count("ex2.approx") <= 64 * tile.groups  # no more than half a tile


@needs_triton
@sampled(19)
@pytest.mark.parametrize(
    "name", ["swiglu", "gelu", "gradient", "sums", "backward", "one_of_two", "pair_and_more"]
)
@pytest.mark.parametrize("form", ["pingpong", "cooperative"])
@pytest.mark.parametrize("lies", ["(N, K)", "(K, N)", "in single precision"])
def test_descriptors_that_the_host_makes(name: str, form: str, lies: str) -> None:
    """They are parameters: nothing is left for which a launch would have to get memory."""
    itemsize = 4 if lies == "in single precision" else 2
    epilogue = single(EPILOGUES[name]) if itemsize == 4 else EPILOGUES[name]
    every = [one for one in tiles(epilogue, 227 << 10).values() if one.itemsize == itemsize]
    tile, transposed = next(one for one in every if one.form == form), lies != "(K, N)"
    of = tma_operands(epilogue, tile.m, tile.n, tile.k, transposed)
    made = binary_of(epilogue, tile, 90, transposed, hosted=True)
    own = binary_of(epilogue, tile, 90, transposed)
    text, texts = made.asm["ptx"], (made.asm["ptx"], own.asm["ptx"])
    assert len(re.findall(PARAMETER, text)) == len(of)
    assert not re.findall(PARAMETER, texts[1])
    assert made.metadata.global_scratch_size == 0
    assert own.metadata.global_scratch_size >= 128 * len(of)
    for operation in ("wgmma.", "cp.async.bulk.tensor", "setmaxnreg"):
        mine, theirs = (one.count(operation) for one in texts)
        assert mine == theirs > 0, operation
    meta = made.metadata.tensordesc_meta
    for one, (*_, (rows, columns), _) in zip(meta, in_order(made, of), strict=True):
        across = min(columns, 128 // itemsize)  # of one copy, whose rows are 128 bytes at most
        assert tuple(one["block_size"]) == (rows, across)
        assert 16 << one["swizzle"] == across * itemsize
    matrices = {name: Matrix(*facts) for name, facts in of.items()}
    kinds = [one["elem_type"] for one in meta]
    assert round_to_tf32(made, matrices) == (itemsize == 4)
    assert not round_to_tf32(made, matrices)  # done already
    for one, before, (*_, multiplied) in zip(meta, kinds, in_order(made, of), strict=True):
        assert one["elem_type"] == (TF32 if itemsize == 4 and multiplied else before)


def in_order(made: Any, of: dict[str, Any]) -> list[Any]:
    """What is said of descriptors, as they are among the kernel's parameters."""
    return [of[name] for name in made.src.fn.arg_names if name in of]
