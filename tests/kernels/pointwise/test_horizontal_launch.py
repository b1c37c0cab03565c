"""How the kernel of many members is launched: its parameter, memory; run by g++ on the host."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fusepass.kernels.codegen import workspace
from fusepass.kernels.codegen.workspace import ResultCache
from fusepass.kernels.pointwise import horizontal as kernel
from fusepass.kernels.pointwise import horizontal_launch as launching
from tests.kernels import on_host as host
from tests.kernels.horizontal_programs import (
    DTYPES,
    addresses_of,
    agree,
    every_operations_operands,
    in_place,
    members,
)
from tests.kernels.on_host import needs_compiler


def test_parameters_fit() -> None:
    """Into what drivers take: 4 KiB in any case, 32764 bytes since CUDA 12.1."""
    assert ctypes.sizeof(launching._table(*launching._SMALL)) <= 4096
    assert ctypes.sizeof(launching._table(*launching._LARGE)) <= 32764


@pytest.mark.parametrize("count", [1, 30, 700])
def test_what_generated_code_calls(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made from its text, it launches each member once, with its own addresses."""
    operands, program = members("cpu", "float16", count)
    monkeypatch.setattr(kernel, "kernel_calls_possible", lambda: True)
    fakes = FakeTensorMode()
    with fakes:
        on_device = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0")
            for x in operands
        ]
    call = kernel._call(on_device, program.text())
    assert call is not None
    assert (call.module, call.maker) == (launching.__name__, "make_launcher")
    assert kernel._call(operands, program.text()) is None  # not on the CPU
    want = kernel.reference(operands, program)
    said = [(dtype, tuple(shape), tuple(strides)) for dtype, shape, strides in call.outputs]
    assert said == [(one.dtype, tuple(one.shape), one.stride()) for one in want]

    launched: list[tuple[int, Any]] = []
    monkeypatch.setattr(launching, "_kernel", lambda *given: "kernel")
    monkeypatch.setattr(
        launching.nvrtc, "launch", lambda kernel, blocks, n, table, at: launched.append((at, table))
    )
    launching._launches.cache_clear()
    fill = launching.make_launcher(*eval(repr(call.arguments)))
    tables: list[list[Any]] = []
    for turn in range(3):
        if turn == 2:
            operands[-1] = operands[-1].clone(memory_format=torch.preserve_format)
        fill(*operands, *want)
        got = []
        tables.append([table for _, table in launched])
        for device, table in launched:
            assert device == 0
            for i in range(table.count):
                last = table.at[i + 1] if i + 1 < table.count else None
                got.append(list(table.address[table.at[i] : last]))
        expected = addresses_of(operands, want, program)
        for addresses, given in zip(got, expected, strict=True):
            assert addresses[: len(given)] == given
        launched.clear()
    first, again, moved = ([id(table) for table in some] for some in tables)
    assert first == again  # of the same addresses
    assert set(again).isdisjoint(moved)
    launching._launches.cache_clear()


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The operator's CUDA way, for tensors on the CPU."""
    for owner, name, there in (
        (launching.cubin_cache, "load_or_compile", host.compiled),
        (launching.nvrtc, "launch", host.launch),
        (torch.cuda, "device", lambda device: contextlib.nullcontext()),
        (launching.nvrtc, "_EMPTY", host.empty),
    ):
        monkeypatch.setattr(owner, name, there)
    caches = launching._launches, launching._kernel
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.sampled(3)
@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 60, 1500])
def test_the_kernel_on_the_host(dtype: str, count: int, on_host: None) -> None:
    operands, program = members("cpu", dtype, count)
    agree(kernel.launch(operands, program.text()), kernel.reference(operands, program), dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_in_the_place_of_operands_on_the_host(dtype: str, on_host: None) -> None:
    operands, results, program = in_place("cpu", dtype)
    want = kernel.reference(operands, program)
    shapes, columns = launching.sizes_of(operands, launching.plan_of(program.text()))
    launching.make_launcher(program.text(), shapes, columns, 0)(*operands, *results)
    agree(results, want, dtype)


@needs_compiler
def test_every_operation_on_the_host(on_host: None) -> None:
    operands, program = every_operations_operands("cpu")
    got = kernel.launch(operands, program.text())
    agree(got, kernel.reference(operands, program), "bfloat16")


def test_results_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same memory as long as nothing is captured; a table is filled when something moved."""
    operands, program = members("cpu", "float16", 12)
    want = kernel.reference(operands, program)
    plan, captured = launching.plan_of(program.text()), [False]
    shapes, columns = launching.sizes_of(operands, plan)
    own = tuple((i, str(want[i].dtype)[6:], want[i].stride()) for i in (1, 2, 7, 11))
    launched: list[list[int]] = []
    filled: list[int] = []
    monkeypatch.setattr(launching, "_kernel", lambda *given: "kernel")
    for name, function in {
        "launch": lambda kernel, blocks, n, table, at: launched.append(list(table.address)),
        "is_capturing": lambda: captured[0],
        "stream": lambda device: 3,
        "_EMPTY": host.empty,
    }.items():
        monkeypatch.setattr(launching.nvrtc, name, function)
    monkeypatch.setattr(workspace, "_max_bytes", lambda device: 1 << 30)
    monkeypatch.setattr(
        launching, "ResultCache", lambda kinds, device: ResultCache(kinds, torch.device("cpu"))
    )
    real = launching._fill_parameters
    monkeypatch.setattr(
        launching, "_fill_parameters", lambda *given: (filled.append(1), real(*given))[1]
    )
    launching._launches.cache_clear()
    fill = launching.make_launcher(program.text(), shapes, columns, 0, own)
    given = [one for i, one in enumerate(want) if i not in (1, 2, 7, 11)]

    def agrees(mine: list[Tensor]) -> None:
        (addresses,) = launched
        for i, one in zip((1, 2, 7, 11), mine, strict=True):
            assert (one.dtype, one.shape) == (want[i].dtype, want[i].shape)
            assert one.stride() == want[i].stride()
        results = [*given]
        for place, one in zip((1, 2, 7, 11), mine, strict=True):
            results.insert(place, one)
        expected = [one for some in addresses_of(operands, results, program) for one in some]
        assert addresses[: len(expected)] == expected
        launched.clear()

    first = fill(*operands, *given)
    agrees(first)
    again = fill(*operands, *given)
    assert [one.data_ptr() for one in again] == [one.data_ptr() for one in first]
    agrees(again)
    assert len(filled) == 1
    operands[0] = operands[0].clone()
    agrees(fill(*operands, *given))
    assert len(filled) == 2
    captured[0] = True
    fresh = fill(*operands, *given)
    assert {one.data_ptr() for one in fresh if one.numel()}.isdisjoint(
        one.data_ptr() for one in first
    )
    agrees(fresh)
    launching._launches.cache_clear()
