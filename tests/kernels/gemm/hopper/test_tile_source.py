"""The GEMM in CUDA C++ for Hopper: its text compiled, and its launches with a pretended driver."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import (
    Epilogue,
    EpilogueOperand,
    EpilogueStep,
    Output,
    evaluate,
    parse,
)
from fusepass.kernels.codegen.cuda_epilogue import in_cuda
from fusepass.kernels.gemm.hopper import launch
from fusepass.kernels.gemm.hopper.tile_source import TileKernel, hopper_cuda
from fusepass.kernels.gemm.hopper.tile_template import SENT
from fusepass.kernels.gemm.tiles import tiles
from fusepass.torch_private.inductor.host_call import HostCall
from tests.kernels.gemm.test_op import EPILOGUES
from tests.kernels.nvrtc import compile_error, needs_nvrtc
from tests.kernels.on_host import needs_compiler

STORED = {
    name: epilogue
    for name, epilogue in EPILOGUES.items()
    if not epilogue.reduced and {one.dtype for one in epilogue.outputs} <= {"float16", "bfloat16"}
}
CUTS = [tile.cuda for tile in tiles(EPILOGUES["plain"]).values()]
SHAPES = [cut for cut in CUTS if isinstance(cut, TileKernel)]
STEPS = (
    EpilogueStep("add", ("%0", "%1")),
    EpilogueStep("mul", ("%6", "%2")),
    EpilogueStep("where", ("%5", "%7", "%3")),
    EpilogueStep("maximum", ("%8", -0.0)),
    EpilogueStep("add", ("%9", 1e-05)),
    EpilogueStep("mul", ("%10", "%4")),
    EpilogueStep("lt", ("%11", math.inf)),
    EpilogueStep("eq", ("%11", "%11")),
    EpilogueStep("logical_and", ("%12", "%13")),
    EpilogueStep("where", ("%14", "%11", math.nan)),
)
EVERYTHING = Epilogue(
    1,
    (
        EpilogueOperand("row", "bfloat16"),
        EpilogueOperand("column", "float32"),
        EpilogueOperand("full", "float16"),
        EpilogueOperand("scalar", "float32"),
        EpilogueOperand("full", "bool"),
    ),
    STEPS,
    (Output("%15", "bfloat16"), Output("%0", "bfloat16")),
)


def operands_of(m: int, n: int, device: str) -> list[Tensor]:
    """Those of ``EVERYTHING`` for a product of that size; rows of a matrix lie further apart."""
    return [
        torch.randn(n, device=device).bfloat16(),
        torch.randn(m, 1, device=device),
        torch.randn(m, n + 8, device=device).half()[:, :n],
        torch.randn((), device=device),
        torch.randn(m, n, device=device) > 0,
    ]


GREATEST = Epilogue(
    1,
    (),
    (
        EpilogueStep("minimum", ("%0", torch.finfo(torch.float32).max)),
        EpilogueStep("mul", ("%1", 0.25)),
        EpilogueStep("abs", ("%0",)),
        EpilogueStep("le", ("%3", torch.finfo(torch.float32).max)),
        EpilogueStep("where", ("%4", "%2", -0.5)),
    ),
    (Output("%5", "bfloat16"),),
)


@needs_nvrtc
@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_compiles(name: str, shape: TileKernel) -> None:
    epilogue = STORED[name]
    dtype = epilogue.outputs[0].dtype
    assert compile_error(hopper_cuda(epilogue, shape, dtype), "sm_90a") is None


@needs_nvrtc
def test_it_compiles_with_everything() -> None:
    text = hopper_cuda(EVERYTHING, SHAPES[0], "float16")
    assert compile_error(text, "sm_90a") is None
    assert not re.findall(r"(?m)^.*\$\w+.*$", text)  # every place is filled


def test_blocks_share_what_fits() -> None:
    """Operands read by column take the room of results on their way out, if there is no other."""
    wide = EpilogueOperand("row", "float32")
    for shape in SHAPES:
        for epilogue in (
            *STORED.values(),
            Epilogue(1, (wide,) * 4, (), (Output("%1", "float16"),)),
        ):
            assert shape.shared(epilogue) <= 227 << 10
            assert shape.width(epilogue.products) % shape.piece(epilogue) == 0
    assert TileKernel(128, 256, 4).piece(STORED["plain"]) == 64
    assert TileKernel(128, 256, 4).piece(replace(STORED["plain"], operands=(wide,) * 4)) == 32
    assert (
        TileKernel(128, 256, 4).kept(replace(STORED["plain"], operands=(wide,) * 4)) == 4 * 4 * 256
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_registers(shape: TileKernel) -> None:
    """A multiprocessor has 65,536, dealt out by four warps; a group gives and takes only so many."""
    text = hopper_cuda(EPILOGUES["plain"], shape, "bfloat16")
    each = (1 << 16) // (-(-shape.threads // 128) * 128) // 8 * 8
    held = shape.own // 64 * shape.columns // 2  # products of a thread
    asked = [int(one) for one in re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32 (\d+)", text)]
    if held > 72 or shape.groups > 2:
        fewer, more = asked
        assert shape.threads == 128 * (shape.groups + 1)
        assert 128 * (fewer + more * shape.groups) <= 128 * (shape.groups + 1) * each
        assert more >= held + 48
    else:
        assert (asked, shape.threads) == ([], 128 * shape.groups + 32)
        assert each >= held + 48


@pytest.mark.parametrize("piece", [64, 32, 16])
def test_results_lie_as_tma_takes_them(piece: int) -> None:
    """In 16 bytes at a time, which of eight rows lie in different banks.

    Bits 7 and up of an address are added to bits 4 and up (CUDA C++ Programming Guide, "Tensor
    Memory Access", swizzle modes).
    """
    (text,) = re.findall(r"const u32 words = spot \+ \((.*)\);", SENT)
    formula = text.replace("PIECE", str(piece)).replace("/", "//")
    for row in range(64):
        for chunk in range(piece // 8):
            at = row * piece * 2 + chunk * 16
            moved = chunk ^ ((at >> 7) % (piece // 8))
            assert eval(formula, {"at": at}) == row * piece * 2 + moved * 16


_HOST = """
#include <cmath>
#include <cstring>
#define __device__
#define __forceinline__ inline
typedef unsigned u32;
static inline float __uint_as_float(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float _exp2(float x) { return exp2f(x); }
static inline float _reciprocal(float x) { return 1.0f / x; }
static inline float _larger(float x, float y) { return x != x ? x : y != y ? y : fmaxf(x, y); }
static inline float _smaller(float x, float y) { return x != x ? x : y != y ? y : fminf(x, y); }
"""


@needs_compiler
@pytest.mark.parametrize("name", [*STORED, "everything", "greatest"])
def test_numbers_of_an_element(name: str, tmp_path: Path) -> None:
    """The function that computes one, by g++, against torch: also of infinities, NaN and zeros."""
    epilogue = {"everything": EVERYTHING, "greatest": GREATEST}.get(name) or STORED[name]
    epilogue = parse(epilogue.text().replace("bfloat16", "float16"))
    text = hopper_cuda(epilogue, SHAPES[0], "float16")
    given = epilogue.products + len(epilogue.operands)
    calls = [f"in[{i}]" for i in range(given)] + [f"out[{i}]" for i in range(len(epilogue.outputs))]
    parts = [("float _logistic", "float _larger"), ("void element", 'extern "C"')]
    head = "__device__ __forceinline__ "
    body = [text[text.index(head + a) : text.index(b)].removesuffix(head) for a, b in parts]
    loop = f"in += {given}, out += {len(epilogue.outputs)}"
    run = f"for (; n--; {loop}) element({', '.join(calls)});"
    source = f'extern "C" void run(int n, const float* in, float* out) {{ {run} }}'
    (tmp_path / "element.cpp").write_text("\n".join([_HOST, *body, source]))
    made = tmp_path / "element.so"
    given_to = ["g++", "-O1", "-shared", "-fPIC", "-w", "-o", str(made), "element.cpp"]
    subprocess.run(given_to, check=True, cwd=tmp_path)
    torch.manual_seed(0)
    x = torch.randn(4000, given)
    x[1000:1500] *= 20
    exact = name in ("everything", "greatest")
    # The reference of GELU cubes its argument, and overflows where this does not.
    most = torch.finfo(torch.float32).max if exact else 1e4
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, most, -most, 1.0])
    x[-1000:] = special[torch.randint(0, len(special), (1000, given))]
    for i, one in enumerate(epilogue.operands, epilogue.products):
        x[:, i] = (x[:, i] > 0).float() if one.dtype == "bool" else x[:, i]
    got = torch.empty(len(x), len(epilogue.outputs))
    library = ctypes.CDLL(str(made))
    library.run(len(x), ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(got.data_ptr()))
    single = replace(
        epilogue, outputs=tuple(replace(one, dtype="float32") for one in epilogue.outputs)
    )
    columns = list(x.split(1, dim=1))
    operands = [
        column != 0 if one.dtype == "bool" else column
        for one, column in zip(epilogue.operands, columns[epilogue.products :], strict=True)
    ]
    want = torch.cat(evaluate(single, columns[: epilogue.products], operands), 1)
    torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("v1 * 0.5", "v1 * 0.5f"),
        ("1.0 + tl.exp2(-v10)", "1.0f + _exp2(-v10)"),
        ("tl.maximum(v3, 0.0, propagate_nan=tl.PropagateNan.ALL)", "_larger(v3, 0.0f)"),
        ("tl.where(v1, v2, 1e-05)", "_where(v1, v2, 1e-05f)"),
        ('v1 < float("-inf")', "v1 < -__uint_as_float(0x7f800000u)"),
        ("v1 + 1e+300", "v1 + __uint_as_float(0x7f800000u)"),
        ("v1 < 3.4028234663852886e+38", "v1 < 3.4028234663852886e+38f"),
        ("v1 < -3.4028234663852886e+38", "v1 < -3.4028234663852886e+38f"),
        ("v1 < 3.4028235677973367e+38", "v1 < __uint_as_float(0x7f800000u)"),
        ("--0.5", "- -0.5f"),
        ("v1 & True", "v1 & true"),
    ],
)
def test_expressions(theirs: str, ours: str) -> None:
    """A number without an f would have all arithmetic in double precision."""
    assert in_cuda(theirs) == ours


class Driver:
    """Takes launches and descriptors, and remembers them."""

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self.maps: list[Any] = []
        self.compiled: list[Any] = []
        self.begins_early = True

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nvrtc = SimpleNamespace(
            give_shared_memory=lambda kernel, size: self.compiled.append(size),
            stream=lambda device: 7,
            launch_with=self._launched,
            early=lambda *how: how,
            begins_early=lambda: self.begins_early,
            launch_early=self._launched_early,
        )
        monkeypatch.setattr(launch, "nvrtc", nvrtc)
        monkeypatch.setattr(launch.cubin_cache, "load_or_compile", self._compiled)
        monkeypatch.setattr(launch, "tensor_map", self._mapped)
        monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
        properties = SimpleNamespace(multi_processor_count=132)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        launch._compiled.cache_clear()
        launch.make_launcher.cache_clear()

    def _compiled(self, source: str, name: str, architecture: str) -> str:
        assert (name in source, architecture) == (True, "90a")
        self.compiled.append(source)
        return "kernel"

    def _mapped(self, of: Any, address: int, rows: int, columns: int, stride: int) -> Any:
        self.maps.append((of.tile, of.swizzle, address, rows, columns, stride))
        return (ctypes.c_char * 128)()

    def _launched(self, *given: Any) -> None:
        self.launches.append(given)

    def _launched_early(self, kernel: str, how: tuple[Any, ...], parameters: Any) -> None:
        self.launches.append(("early", kernel, *how, parameters))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    made.install(monkeypatch)
    yield made
    launch._compiled.cache_clear()
    launch.make_launcher.cache_clear()


def test_a_launch(driver: Driver) -> None:
    """Its descriptors, its numbers, and how many blocks; asked for again, it is kept."""
    epilogue = replace(EVERYTHING, outputs=EVERYTHING.outputs)
    m, n, k = 300, 520, 96
    x, w = torch.empty(m, k, dtype=torch.float16), torch.empty(n, k, dtype=torch.float16)
    operands = operands_of(m, n, "cpu")
    outputs = [torch.empty(m, n, dtype=torch.bfloat16) for _ in range(2)]
    fill = launch.make_launcher(
        epilogue.text(), ("tiles", 128, 224, 4, False), "float16", (n, k), (k, k), 0
    )
    strides = operands[2].stride(0), operands[4].stride(0)
    for _ in range(2):
        fill(m, *strides, x, w, *operands, *outputs)
    assert driver.maps == [
        ((128, 64), 3, x.data_ptr(), m, k, k),
        ((224, 64), 3, w.data_ptr(), n, k, k),
        *(((64, 32), 2, one.data_ptr(), m, n, n) for one in outputs),
    ]
    first, again = driver.launches
    kernel, grid, threads, shared, stream, parameters = first
    shape = TileKernel(128, 224, 4)
    assert (kernel, grid, stream) == ("kernel", (3 * 3, 1, 1), 7)
    assert (threads, shared) == (shape.threads, shape.shared(epilogue))
    assert again[-1] is parameters
    assert len(parameters) == 5  # four descriptors, and the rest
    wanted = [
        one
        for i, at in enumerate(operands)
        for one in (at.data_ptr(), {2: strides[0], 4: strides[1]}.get(i, 0))
    ]
    table = (ctypes.c_uint64 * len(wanted)).from_address(parameters[4])
    assert list(table) == wanted
    sizes = (ctypes.c_uint32 * 3).from_address(parameters[4] + 8 * len(wanted))
    assert list(sizes) == [m, n, k]
    fill(m - 1, *strides, x, w, *operands, *outputs)
    assert driver.maps[4][3] == m - 1
    fill(0, *strides, x, w, *operands, *outputs)
    assert len(driver.launches) == 3  # of nothing there is none
    assert len(driver.compiled) == 2  # a source and its memory: M is none of its constants


def test_launches_are_forgotten(driver: Driver) -> None:
    """Rather than kept for ever, where each call comes with other memory."""
    plain = EPILOGUES["plain"]
    dtype = plain.outputs[0].dtype
    fill = launch.make_launcher(
        plain.text(), ("tiles", 128, 128, 6, False), dtype, (64, 64), (64, 64), 0
    )
    half = getattr(torch, dtype)
    x, w, out = (torch.empty(64, 64, dtype=half) for _ in range(3))
    for m in [*range(1, 3 * launch._KEPT), 1]:
        fill(m, x, w, out)
    assert len(driver.launches) == 3 * launch._KEPT
    assert driver.launches[0][1] == driver.launches[-1][1]
    assert len(driver.maps) == 3 * len(driver.launches)  # the first is made anew


def test_what_generated_code_calls() -> None:
    epilogue = EPILOGUES["gelu"]
    dtype = getattr(torch, epilogue.outputs[0].dtype)
    m, n, k = 300, 520, 96

    def fake(shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    shapes = {"row": (n,), "column": (m, 1), "full": (m, n), "scalar": ()}
    operands = [fake(shapes[one.kind], getattr(torch, one.dtype)) for one in epilogue.operands]
    values = [fake((m, k), dtype), fake((n, k), dtype).t(), *operands]
    call = launch.host_call(values, 1, epilogue.text(), TileKernel(128, 224, 4))
    assert isinstance(call, HostCall)
    assert eval(repr(call.arguments)) == call.arguments
    assert [kind for kind, *_ in call.outputs] == [dtype] * len(epilogue.outputs)
    full = sum(one.kind == "full" for one in epilogue.operands)
    assert list(call.numbers) == [m, *[n] * full]
    text, cut, name, sizes, strides, device = call.arguments
    assert (text, sizes, strides) == (epilogue.text(), (n, k), (k, k))
    assert launch._cut(*cut) == TileKernel(128, 224, 4)
    assert (getattr(torch, name), device) == (dtype, 0)
