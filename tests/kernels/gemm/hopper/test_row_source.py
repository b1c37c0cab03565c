"""The GEMM of one row in CUDA C++ for Hopper: its text compiled, its memory, its launches."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.gemm.hopper import launch
from fusepass.kernels.gemm.hopper.launch import numbers_of
from fusepass.kernels.gemm.hopper.row_source import WIDEST, RowKernel, hopper_row
from fusepass.kernels.gemm.hopper.tile_source import MEMORY
from fusepass.kernels.gemm.tiles import tiles
from tests.kernels.gemm.hopper.test_stream_source import ALL_KINDS, STREAMED
from tests.kernels.gemm.hopper.test_tile_source import Driver, driver, operands_of
from tests.kernels.gemm.test_op import EPILOGUES
from tests.kernels.nvrtc import compile_error, needs_nvrtc

__all__ = ["driver"]


def ring(epilogue: Epilogue) -> RowKernel:
    (cut,) = (tile.cuda for tile in tiles(epilogue, 227 << 10).values() if tile.form == "ring")
    assert isinstance(cut, RowKernel)
    return cut


CASES = [
    pytest.param(epilogue, replace(ring(epilogue), early=early, leads=leads), id=f"{name}-{how}")
    for name, epilogue in {**STREAMED, "all kinds": ALL_KINDS}.items()
    for how, early, leads in (("alone", False, False), ("between", True, True))
]


@needs_nvrtc
@pytest.mark.sampled(4)
@pytest.mark.parametrize(("epilogue", "cut"), CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_it_compiles(epilogue: Epilogue, cut: RowKernel, dtype: str) -> None:
    text = hopper_row([epilogue], cut, dtype)
    assert compile_error(text, "sm_90a") is None
    assert not re.findall(r"(?m)^.*\$\w+.*$", text)  # every place is filled


@pytest.mark.parametrize("name", ["plain", "swiglu"])
def test_shared_memory(name: str) -> None:
    """A warp has slots of its own, each with two barriers; x lies behind them all."""
    epilogue = EPILOGUES[name]
    cut = ring(epilogue)
    slots = cut.stages * cut.warps
    for k in (8, 4096, WIDEST):
        wanted = 128 + slots * epilogue.products * cut.piece * 2 + k * 2 + 2 * 8 * slots
        assert cut.shared(epilogue, k) == wanted <= MEMORY
    assert cut.shared(epilogue) == cut.shared(epilogue, WIDEST)


def test_wider_rows_are_left_to_others() -> None:
    weight = torch.empty(8, WIDEST + 8, dtype=torch.float16, device="meta").t()
    tile = next(t for t in tiles(EPILOGUES["plain"]).values() if t.form == "ring")
    assert not tile.takes(1, [weight], EPILOGUES["plain"])


def test_only_one_that_overlaps_waits_or_leads() -> None:
    """Griddepcontrol stands where it is asked for, in front of the first read of x."""
    cut = ring(ALL_KINDS)
    for early in (False, True):
        for leads in (False, True):
            text = hopper_row([ALL_KINDS], replace(cut, early=early, leads=leads), "float16")
            assert ("griddepcontrol.wait" in text) == early
            assert ("griddepcontrol.launch_dependents" in text) == leads
    body = text[text.index('extern "C"') :]
    waits = body.index("griddepcontrol.wait")
    assert body.index("fetch_once(") < waits  # weights do not wait
    for read in ("t.x +", *(f"t.p{i}" for i in range(len(ALL_KINDS.operands))), "t.o0"):
        assert waits < body.index(read)


@pytest.mark.parametrize(("early", "new_driver"), [(False, True), (True, True), (True, False)])
def test_a_launch(driver: Driver, early: bool, new_driver: bool) -> None:
    """Its table of addresses and numbers; an old driver launches as usual what may begin early."""
    cut = replace(ring(ALL_KINDS), early=early)
    driver.begins_early = new_driver
    n, k = 520, 96
    x, w = torch.empty(1, k, dtype=torch.float16), torch.empty(n, k + 8, dtype=torch.float16)
    operands = operands_of(1, n, "cpu")
    outputs = [torch.empty(1, n, dtype=getattr(torch, one.dtype)) for one in ALL_KINDS.outputs]
    given = ALL_KINDS.text(), numbers_of(cut), "float16", (n, k), (k, k + 8), 0
    fill = launch.make_launcher(*eval(repr(given)))
    for _ in range(2):
        fill(1, n + 8, n, x, w, *operands, *outputs)
    first, second = driver.launches
    assert first[:-1] == second[:-1]
    assert first[-1] is second[-1]
    *kind, kernel, grid, threads, shared, stream, parameters = first
    assert kind == ["early"] * (early and new_driver)
    assert (kernel, grid, threads, stream) == ("kernel", (132, 1, 1), cut.threads, 7)
    assert shared == cut.shared(ALL_KINDS, k)
    wanted = [x.data_ptr(), w.data_ptr(), k + 8]
    for i, at in enumerate(operands):
        wanted += [at.data_ptr(), {2: n + 8, 4: n}.get(i, 0)]
    wanted += [one.data_ptr() for one in outputs]
    assert len(parameters) == 1
    assert list((ctypes.c_uint64 * len(wanted)).from_address(parameters[0])) == wanted
    sizes = (ctypes.c_uint32 * 3).from_address(parameters[0] + 8 * len(wanted))
    assert list(sizes) == [1, n, k]
    assert driver.compiled[0] == hopper_row([ALL_KINDS], cut, "float16")
    assert driver.compiled[1] == cut.shared(ALL_KINDS)
