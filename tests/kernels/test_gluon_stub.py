"""A Gluon kernel as Inductor sees it, from the text that it copies to what its launcher compiles."""

from __future__ import annotations

import ast
import itertools
import pickle
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton, which this torch came without")

from fusepass.kernels import gemm_region as kernel
from fusepass.kernels.gemm_tiles import Tile, tiles
from fusepass.torch_private import kernel_launcher
from tests.kernels.test_gemm_region import GELU

LOADED = itertools.count()
TILE: Tile = next(tile for tile in tiles(GELU).values() if tile.groups)


def copied(stub: Any) -> str:
    """What Inductor writes into its code of a user's kernel."""
    from torch._inductor.codegen import wrapper

    text = wrapper.user_defined_triton_kernel_transitive_closure_source_code(stub)
    assert isinstance(text, str)
    return text


def test_the_stub_has_the_kernels_parameters_and_writes_its_outputs() -> None:
    tuned, stub = kernel.kernel(GELU.text(), TILE), kernel.inductor_kernel(GELU.text(), TILE).fn
    assert stub.arg_names == tuned.fn.arg_names
    assert [p.is_constexpr for p in stub.params] == [p.is_constexpr for p in tuned.fn.params]
    (function,) = ast.parse(stub._src).body
    assert isinstance(function, ast.FunctionDef)
    stored = [ast.unparse(line) for line in function.body]
    assert stored == ["tl.store(o0, 0.0)", "tl.store(o1, 0.0)"]
    assert kernel.inductor_kernel(GELU.text(), Tile(128, 128, 64, 4, 3)).fn.src.count("store") < 9


def launcher_of(text: str, tile: Tile = TILE) -> Any:
    """What stands in generated code under the name of the stub, or of a kernel in Triton."""
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.hints import DeviceProperties

    stub = kernel.inductor_kernel(GELU.text(), tile)
    fixed = [p.name for p in stub.fn.params if p.is_constexpr]
    kinds = dict.fromkeys(stub.fn.arg_names, "i32") | dict.fromkeys(fixed, "constexpr")
    kinds |= dict.fromkeys(("x_ptr", "w0_ptr", "p0", "p1", "o0", "o1"), "*bf16")
    meta = {
        "signature": kinds,
        "device": DeviceProperties(
            type="cuda", index=0, multi_processor_count=132, cc=90, warp_size=32
        ),
        "constants": {"TRANSPOSED": True} if "TRANSPOSED" in fixed else {},
        "configs": [{}],
    }
    config = {**stub.configs[0].kwargs, "num_warps": tile.warps, "num_stages": tile.stages}
    head = f"""
import triton
import triton.language as tl
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties

@triton_heuristics.user_autotune(
    configs={[config]!r}, inductor_meta={{"kernel_name": "fusepass_gemm"}}, triton_meta={meta!r},
    filename=__file__, custom_kernel=True,
)
@triton.jit
"""
    anew = f"\n# {next(LOADED)}\n"  # a module of its own: to be sent, its functions are taken out
    return PyCodeCache.load(head + text + anew).fusepass_gemm


def test_inductors_launcher_compiles_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_launcher, "set_driver_to_gpu", lambda: None)
    launcher = launcher_of(copied(kernel.inductor_kernel(GELU.text(), TILE).fn))
    assert type(launcher) is kernel_launcher.GluonLauncher
    with monkeypatch.context() as patch:
        patch.setattr(launcher, "_direct", lambda result: result)
        compiled = launcher._precompile_config(launcher.configs[0]).kernel
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    old = launcher.prepare_for_pickle()  # as a compiling process sends it back
    sent = pickle.loads(pickle.dumps(launcher))
    assert type(sent) is kernel_launcher.GluonLauncher
    assert old[0] is not None


def test_a_launcher_that_measures_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = launcher_of(copied(kernel.inductor_kernel(GELU.text(), TILE).fn))
    plain = object.__new__(kernel_launcher.of.DebugAutotuner)
    kernel_launcher.use(launcher.fn, {"kernel": plain, "other": torch})
    assert isinstance(plain, kernel_launcher.of.DebugAutotuner)
    assert type(plain) is kernel_launcher.GluonDebugLauncher
