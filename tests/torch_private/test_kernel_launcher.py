"""Our kernels are launched as Inductor launches its own, also where one needs memory besides."""

from __future__ import annotations

import pickle
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

from fusepass.kernels import gemm_region as kernel
from fusepass.kernels import text_behind
from fusepass.kernels.gemm_tiles import tiles
from fusepass.torch_private import kernel_launcher
from tests.kernels.test_gemm_region import GELU
from tests.kernels.test_gluon_stub import copied, launcher_of

FORMS = {"rows": StaticallyLaunchedCudaKernel} | dict.fromkeys(
    ("grid", "pingpong"), kernel_launcher.KernelWithScratch
)


def compiled(form: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(text_behind, "kernel_calls_tested", lambda: True)
    monkeypatch.setattr(kernel_launcher, "set_driver_to_gpu", lambda: None)
    monkeypatch.setattr("torch._inductor.runtime.triton_helpers.set_driver_to_gpu", lambda: None)
    tile = next(tile for tile in tiles(GELU).values() if tile.form == form)
    launcher = launcher_of(copied(kernel.inductor_kernel.__wrapped__(GELU.text(), tile).fn), tile)
    assert isinstance(launcher, kernel_launcher.DirectLauncher)
    return launcher._precompile_config(launcher.configs[0])


@pytest.mark.parametrize("form", FORMS)
def test_what_launches_a_kernel(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = compiled(form, monkeypatch)
    assert type(result) is StaticTritonCompileResult
    assert type(result.kernel) is FORMS[form]
    sent = pickle.loads(pickle.dumps(result)).kernel  # as a compiling process sends it back
    assert type(sent) is FORMS[form]
    assert sent.cubin_raw == result.kernel.cubin_raw


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
