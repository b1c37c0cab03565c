"""Our kernels are launched as Inductor launches its own, also where one needs memory besides."""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton, which this torch came without")

from torch._inductor import config
from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedCudaKernel
from torch._inductor.runtime.triton_heuristics import (
    CachingAutotuner,
    StaticTritonCompileResult,
    TritonCompileResult,
)

from fusepass.kernels.codegen import inductor_source
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.tiles import tiles
from fusepass.torch_private.cuda.tma_launch import MappedKernel
from fusepass.torch_private.inductor import kernel_launcher
from tests.kernels.gemm.hopper.test_gluon_stub import copied, launcher_of
from tests.kernels.gemm.test_op import GELU, single

FORMS = {  # and whether the host makes descriptors
    ("rows", False): StaticallyLaunchedCudaKernel,
    ("grid", False): kernel_launcher.KernelWithScratch,
    ("pingpong", False): kernel_launcher.KernelWithScratch,
    ("pingpong", True): MappedKernel,
    ("cooperative", True): MappedKernel,
}


def compiled(
    form: str, monkeypatch: pytest.MonkeyPatch, *, hosted: bool = False, **given: Any
) -> Any:
    """What Inductor's launcher makes of a kernel; ``given`` as of ``launcher_in``."""
    launcher = launcher_in(form, monkeypatch, hosted=hosted, **given)
    return launcher._precompile_config(launcher.configs[0])


def launcher_in(
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    hosted: bool,
    itemsize: int = 2,
    **given: bool,
) -> Any:
    monkeypatch.setattr(inductor_source.kernel_call, "kernel_calls_tested", lambda: True)
    monkeypatch.setattr(kernel_launcher, "set_driver_to_gpu", lambda: None)
    monkeypatch.setattr("torch._inductor.runtime.triton_helpers.set_driver_to_gpu", lambda: None)
    epilogue = GELU if itemsize == 2 else single(GELU)
    every = tiles(epilogue, 227 << 10).values()
    tile = next(one for one in every if (one.form, one.itemsize) == (form, itemsize))
    lies = given.get("transposed", True)
    made = kernel.inductor_kernel.__wrapped__(epilogue.text(), tile, False, hosted, lies)
    launcher = launcher_of(copied(made.fn), tile, **given)
    assert isinstance(launcher, kernel_launcher.DirectLauncher)
    return launcher


@pytest.mark.parametrize(("form", "hosted"), FORMS)
def test_what_launches_a_kernel(form: str, hosted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    result, kind = compiled(form, monkeypatch, hosted=hosted), FORMS[form, hosted]
    assert type(result) is StaticTritonCompileResult
    assert type(result.kernel) is kind
    sent = pickle.loads(pickle.dumps(result)).kernel  # as a compiling process sends it back
    assert type(sent) is kind
    assert sent.cubin_raw == result.kernel.cubin_raw
    assert Path(result.kernel.cubin_path).read_bytes() == sent.cubin_raw


def test_memory_for_each_program(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled("grid", monkeypatch).kernel
    assert made.bytes_each >= 2 * 128  # two descriptors
    sizes: list[int] = []
    launched: list[tuple[Any, ...]] = []

    def empty(size: int, *, dtype: torch.dtype, device: str) -> str:
        assert (dtype, device) == (torch.int8, "cuda")
        sizes.append(size)
        return "scratch"

    class Driver:
        _launch_kernel = staticmethod(lambda *given: launched.append(given))

    monkeypatch.setattr(kernel_launcher.torch, "empty", empty)
    monkeypatch.setitem(vars(made), "C_impl", Driver)
    arguments = tuple(range(len(made.arg_tys)))
    made.run(5, 2, 1, 7, *arguments)
    assert sizes == [10 * made.bytes_each]
    ((_, *grid, warps, _, kinds, given, stream),) = launched
    assert (grid, warps, stream) == ([5, 2, 1], made.num_warps, 7)
    assert given[: len(arguments)] == arguments
    assert given[len(arguments)] == "scratch"
    assert len(kinds) == len(given)
    assert set(kinds[len(arguments) :]) == {"O"}


def test_where_inductor_launches_nothing_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.patch(use_static_triton_launcher=False):
        assert type(compiled("rows", monkeypatch)) is TritonCompileResult


def test_a_launcher_that_measures_stays_one() -> None:
    class Measuring(CachingAutotuner):
        """Some other kind of launcher."""

    made = object.__new__(Measuring)
    kernel_launcher.direct({"kernel": made, "other": torch})
    assert type(made) is Measuring


class Compiled(types.SimpleNamespace):
    """In the place of a kernel that Triton's launcher would load onto a device."""

    def _init_handles(self) -> None:
        """Nothing to load."""


def test_descriptors_for_tritons_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a debugger has Inductor use it: it is given descriptors where others are given tensors."""
    with config.patch(use_static_triton_launcher=False):
        result = compiled("pingpong", monkeypatch, hosted=True)
    assert type(result) is kernel_launcher.DescribedResult
    launched: list[tuple[Any, ...]] = []
    result.kernel = Compiled(
        src=result.kernel.src,
        metadata=result.kernel.metadata,
        hash=result.kernel.hash,
        function=7,
        launch_metadata=lambda *given: None,
        run=lambda *given: launched.append(given),
    )
    x, w, row, full, *outputs = (torch.empty(8, dtype=torch.bfloat16) for _ in range(6))
    sizes = {"M": 300, "N": 136, "K": 72, "sx": 80, "sw": 96}
    launcher = result.make_launcher()
    assert launcher.config is result.config
    launcher(x, w, row, full, 144, *outputs, *sizes.values(), 5, 1, 1, stream=3)
    ((*grid, stream, function, _, _, _, _), given) = launched[0][:9], launched[0][9:]
    assert (grid, stream, function) == ([5, 1, 1], 3, 7)
    passed = dict(zip(result.kernel.src.fn.arg_names, given, strict=True))
    described = {  # rows, columns, distance of rows; and the tile
        "x_ptr": (x, [300, 72], [80, 1], [128, 64]),
        "w0_ptr": (w, [136, 72], [96, 1], [128, 64]),
        "p1": (full, [300, 136], [144, 1], [128, 64]),
        "o0": (outputs[0], [300, 136], [136, 1], [128, 64]),
        "o1": (outputs[1], [300, 136], [136, 1], [128, 64]),
    }
    assert set(described) == set(result.matrices)
    for name, (base, shape, strides, tile) in described.items():
        one = passed[name]
        assert one.base is base
        assert (one.shape, one.strides, one.block_shape) == (shape, strides, tile)
        assert f"{tile},{one.layout!r}>" in result.kernel.src.signature[name]
    assert passed["p0"] is row
    assert {name: passed[name] for name in sizes} == sizes
    assert passed["s1"] == 144


def test_a_described_result_is_sent_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.patch(use_static_triton_launcher=False):
        launcher = launcher_in("pingpong", monkeypatch, hosted=True)
        result = launcher._precompile_config(launcher.configs[0])
    launcher.prepare_for_pickle()
    sent = pickle.loads(pickle.dumps(result))
    assert type(sent) is kernel_launcher.DescribedResult
    assert sent.matrices == result.matrices


@pytest.mark.parametrize(("form", "hosted"), FORMS)
def test_what_we_launch_newer_torch_launches_no_faster_way(
    form: str, hosted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its second launch on torch calls no ``run``, which for ours is what makes descriptors."""
    launcher = launcher_in(form, monkeypatch, hosted=hosted)
    if not hasattr(CachingAutotuner, "_build_fast_launcher"):
        pytest.skip(f"torch {torch.__version__} has no such way")
    result = launcher._precompile_config(launcher.configs[0])
    monkeypatch.setattr(torch._C, "_FastCudaLauncher", lambda *given: print, raising=False)
    monkeypatch.setattr(result.kernel, "load_kernel", lambda device: None)
    result.kernel.function, result.kernel.n_regs, result.kernel.n_spills = 7, 0, 0
    fast = launcher._build_fast_launcher(result.make_launcher())
    result.kernel.function = None
    assert (fast is None) == (FORMS[form, hosted] is not StaticallyLaunchedCudaKernel)
