"""A Gluon kernel as Inductor sees it, from the text that it copies to what its launcher compiles."""

from __future__ import annotations

import ast
import itertools
import pickle
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton, which this torch came without")

from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.hopper.tma_plan import tma_operands
from fusepass.kernels.gemm.tiles import Tile, tiles
from fusepass.torch_private.cuda.tma_launch import Matrix
from fusepass.torch_private.inductor import kernel_launcher
from tests.kernels.gemm.test_op import GELU, single

LOADED = itertools.count()
TILE: Tile = next(tile for tile in tiles(GELU).values() if tile.groups)


def copied(stub: Any) -> str:
    """What Inductor writes into its code of a user's kernel."""
    from torch._inductor.codegen import wrapper

    text = wrapper.user_defined_triton_kernel_transitive_closure_source_code(stub)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("hosted", [False, True])
def test_the_stub_has_the_kernels_parameters_and_writes_its_outputs(hosted: bool) -> None:
    tuned = kernel.kernel(GELU.text(), TILE, hosted=hosted)
    stub = kernel.inductor_kernel(GELU.text(), TILE, hosted=hosted).fn
    assert stub.arg_names == tuned.fn.arg_names
    assert [p.is_constexpr for p in stub.params] == [p.is_constexpr for p in tuned.fn.params]
    (function,) = ast.parse(stub._src).body
    assert isinstance(function, ast.FunctionDef)
    stored = [ast.unparse(line) for line in function.body]
    assert stored == ["tl.store(o0, 0.0)", "tl.store(o1, 0.0)"]
    assert kernel.inductor_kernel(GELU.text(), Tile(128, 128, 64, 4, 3)).fn.src.count("store") < 9


def launcher_of(
    text: str, tile: Tile = TILE, *, transposed: bool = True, one_row: bool = False
) -> Any:
    """What stands in generated code under the name of the stub, or of a kernel in Triton.

    Args:
        text: as Inductor copied it.
        tile: whose kernel it is.
        transposed: whether the weight lies as (N, K).
        one_row: whether x has one, which Inductor then makes a constant.
    """
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.hints import DeviceProperties

    half = tile.itemsize == 2
    stub = kernel.inductor_kernel((GELU if half else single(GELU)).text(), tile)
    fixed = [p.name for p in stub.fn.params if p.is_constexpr]
    pointers = "x_ptr", "w0_ptr", "p0", "p1", "o0", "o1"
    constants = {"TRANSPOSED": transposed} if "TRANSPOSED" in fixed else {}
    if one_row:
        constants["M"] = 1
    kinds = dict.fromkeys(stub.fn.arg_names, "i32") | dict.fromkeys(
        pointers, "*bf16" if half else "*fp32"
    )
    kinds |= dict.fromkeys((*fixed, *constants), "constexpr")
    aligned = {(stub.fn.arg_names.index(one),): [["tt.divisibility", 16]] for one in pointers}
    meta = {
        "signature": kinds,
        "device": DeviceProperties(
            type="cuda", index=0, multi_processor_count=132, cc=90, warp_size=32
        ),
        "constants": constants,
        "configs": [aligned],
    }
    grid = ["_grid_0", "_grid_1", "_grid_2"]  # what a launch is given behind the arguments
    about = {"kernel_name": "fusepass_gemm", "grid_type": "FixedGrid", "fixed_grid": grid}
    about["extra_launcher_args"] = grid
    config = {**stub.configs[0].kwargs, "num_warps": tile.warps, "num_stages": tile.stages}
    head = f"""
import triton
import triton.language as tl
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties

@triton_heuristics.user_autotune(
    configs={[config]!r}, inductor_meta={about!r}, triton_meta={meta!r},
    filename=__file__, custom_kernel=True,
)
@triton.jit
"""
    anew = f"\n# {next(LOADED)}\n"  # a module of its own: to be sent, its functions are taken out
    return PyCodeCache.load(head + text + anew).fusepass_gemm


@pytest.mark.parametrize("hosted", [False, True])
def test_inductors_launcher_compiles_the_kernel(
    hosted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_launcher, "set_driver_to_gpu", lambda: None)
    launcher = launcher_of(copied(kernel.inductor_kernel(GELU.text(), TILE, hosted=hosted).fn))
    assert type(launcher) is kernel_launcher.GluonLauncher
    of = tma_operands(GELU, TILE.m, TILE.n, TILE.k, True) if hosted else {}
    matrices = {name: Matrix(*given) for name, given in of.items()}
    assert launcher.matrices == matrices
    with monkeypatch.context() as patch:
        patch.setattr(launcher, "_direct", lambda result: result)
        compiled = launcher._precompile_config(launcher.configs[0]).kernel
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    kinds = compiled.src.signature
    assert {name for name, kind in kinds.items() if kind.startswith("tensordesc<bf16[")} == set(of)
    assert (compiled.metadata.global_scratch_size == 0) == hosted
    old = launcher.prepare_for_pickle()  # as a compiling process sends it back
    sent = pickle.loads(pickle.dumps(launcher))
    assert type(sent) is kernel_launcher.GluonLauncher
    assert sent.matrices == matrices
    assert old[0] is not None


def test_a_launcher_that_measures_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = launcher_of(copied(kernel.inductor_kernel(GELU.text(), TILE).fn))
    plain = object.__new__(kernel_launcher.of.DebugAutotuner)
    of = {"x_ptr": ("M", "K", "sx", (128, 64), True)}
    kernel_launcher.use(launcher.fn, {"kernel": plain, "other": torch}, of)
    assert isinstance(plain, kernel_launcher.of.DebugAutotuner)
    assert type(plain) is kernel_launcher.GluonDebugLauncher
    assert plain.matrices == {"x_ptr": Matrix("M", "K", "sx", (128, 64), True)}
