"""The GEMM of few rows in CUDA C++ for Hopper: its text compiled, where results lie, launches."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from types import CodeType

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, Output
from fusepass.kernels.gemm.hopper import launch
from fusepass.kernels.gemm.hopper.launch import numbers_of
from fusepass.kernels.gemm.hopper.stream_source import StreamKernel, hopper_stream
from fusepass.kernels.gemm.hopper.stream_template import TEXT
from fusepass.kernels.gemm.tiles import tiles
from tests.kernels.gemm.hopper.test_tile_source import EVERYTHING, Driver, driver, operands_of
from tests.kernels.gemm.test_op import EPILOGUES
from tests.kernels.nvrtc import compile_error, needs_nvrtc

__all__ = ["driver"]

STREAMED = {name: epilogue for name, epilogue in EPILOGUES.items() if not epilogue.reduced}
ALL_KINDS = replace(
    EVERYTHING,
    outputs=(*EVERYTHING.outputs, Output("%15", "float32"), Output("%14", "bool")),
)


def streams(epilogue: Epilogue) -> list[StreamKernel]:
    cuts = [tile.cuda for tile in tiles(epilogue, 227 << 10).values()]
    return [cut for cut in cuts if isinstance(cut, StreamKernel)]


CASES = [
    pytest.param(epilogue, one, id=f"{name}-{one}")
    for name, epilogue in {**STREAMED, "all kinds": ALL_KINDS}.items()
    for cut in streams(epilogue)
    for one in (cut, replace(cut, early=True, leads=True))
]


@needs_nvrtc
@pytest.mark.sampled(149)
@pytest.mark.parametrize(("epilogue", "cut"), CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_it_compiles(epilogue: Epilogue, cut: StreamKernel, dtype: str) -> None:
    text = hopper_stream(epilogue, cut, dtype)
    assert compile_error(text, "sm_90a") is None
    assert not re.findall(r"(?m)^.*\$\w+.*$", text)  # every place is filled


@pytest.mark.parametrize("products", [1, 2])
def test_shared_memory(products: int) -> None:
    """Whatever is stored there are all of them; what the kernel lays out is what it asks for."""
    epilogue = replace(EPILOGUES["plain"], products=products)
    found = streams(epilogue)
    assert len(found) == 6 * 4 * 3
    for cut in found:
        step = cut.depth * 128 * (products * cut.columns + cut.rows)
        each = products * cut.rows // 2 * 32 * 4  # of all of an instruction's 64 rows
        received = (cut.split - 1) * (4 // cut.split) * each
        barriers = 8 * (2 * cut.stages + 8)
        assert cut.shared(epilogue) == 1024 + cut.stages * step + received + barriers
        assert cut.shared(epilogue) <= 227 << 10


PLACE = "const u32 n", "u32 m", "const int at"


def formula(of: str, part: int = 0) -> CodeType:
    """The right side of an assignment in the kernel's text, as Python; of conditions a part."""
    (found,) = set(re.findall(rf"\b{re.escape(of)} = (.+?)[,;]", TEXT))
    return compile(found.replace("/", "//").split("&&")[part].strip(), of, "eval")


@pytest.mark.parametrize("columns", [32, 48, 56, 64])
@pytest.mark.parametrize("rows", [8, 16, 64, 96, 128])
def test_where_results_lie(rows: int, columns: int) -> None:
    """Each is stored once, from the register in which ``wgmma`` leaves it.

    PTX ISA, "Matrix fragments for wgmma.mma_async.m64nNk16", D: a warp has 16 rows, a thread two
    of them and of each eight columns two. The rows are the weight's here.
    """
    top, left, of_n, of_m, of_at = map(formula, ("const u32 top", "left", *PLACE))
    inside, seen = formula("inside", 1), []
    for warp in range(4):
        for lane in range(32):
            known = {"warp": warp, "lane": lane, "tile": 0, "WIDTH": columns}
            known["top"] = eval(top, known)
            known["left"] = eval(left, known)
            for part in range(2):
                for i in range(rows // 4):
                    local = {**known, "part": part, "i": i}
                    n, m, at = (eval(one, local) for one in (of_n, of_m, of_at))
                    assert n == warp * 16 + lane // 4 + 8 * (at // 2 % 2)
                    assert m == at // 4 * 8 + lane % 4 * 2 + at % 2
                    if eval(inside, local):
                        seen.append((m, n))
    assert sorted(seen) == [(m, n) for m in range(rows) for n in range(columns)]


def test_operands_are_read_where_results_lie() -> None:
    """Read ahead into a thread's registers, they are numbered otherwise than when they are used."""
    kinds = (
        EpilogueOperand("row", "float32"),
        EpilogueOperand("column", "bool"),
        EpilogueOperand("full", "float16"),
    )
    epilogue = replace(EPILOGUES["plain"], operands=kinds)
    text = hopper_stream(epilogue, StreamKernel(16, 64, 2, 4), "float16")
    assert "get(a0[part]), get(a1[i]), get(a2[at])" in text
    bodies = [re.findall(rf" a{i}\[[^;]+\];.*?\n      }}", text, re.DOTALL) for i in range(3)]

    def at(operand: int, name: str, i: int) -> int:
        (body,) = bodies[operand]
        (said,) = re.findall(rf"\b{name} = (.+?)[,;]", body)
        value: int = eval(said.replace("/", "//"), {"top": 0, "left": 0, "i": i})
        return value

    for part in range(2):
        assert at(0, "n", part) == part * 8
        for i in range(4):
            m, number = i // 2 * 8 + i % 2, i // 2 * 4 + part * 2 + i % 2
            assert at(1, "m", i) == m
            assert (at(2, "m", number), at(2, "n", number)) == (m, part * 8)


def test_only_one_that_overlaps_waits_or_leads() -> None:
    """And of what is read in front of the wait nothing but weights."""
    for early in (False, True):
        for leads in (False, True):
            cut = StreamKernel(16, 64, 2, 4, 2, early=early, leads=leads)
            text = hopper_stream(ALL_KINDS, cut, "float16")
            assert text.count("griddepcontrol.wait") == 2 * early  # loads, and what multiplies
            assert text.count("griddepcontrol.launch_dependents") == leads
    ring = TEXT[TEXT.index("if (EARLY)") : TEXT.index("$awaits")]
    assert ring.index("if (pass == 1) {") < ring.index("&x_map") < ring.index("continue;")
    assert "begin < end" in ring  # or a block that has no part of K would load for nobody


def test_a_launch(driver: Driver) -> None:
    """Its descriptors, its numbers, the outputs' addresses, and how many blocks."""
    cut = StreamKernel(16, 64, 2, 6, 2)
    m, n, k = 13, 520, 96
    x, w = torch.empty(m, k, dtype=torch.float16), torch.empty(n, k, dtype=torch.float16)
    operands = operands_of(m, n, "cpu")
    outputs = [torch.empty(m, n, dtype=getattr(torch, one.dtype)) for one in ALL_KINDS.outputs]
    given = ALL_KINDS.text(), numbers_of(cut), "float16", (n, k), (k, k), 0
    fill = launch.make_launcher(*eval(repr(given)))
    fill(m, n + 8, n, x, w, *operands, *outputs)
    assert driver.maps == [
        ((16, 64), 3, x.data_ptr(), m, k, k),
        ((64, 64), 3, w.data_ptr(), n, k, k),
    ]
    ((kernel, grid, threads, shared, stream, parameters),) = driver.launches
    assert (kernel, grid, threads, stream) == ("kernel", (2 * 9, 1, 1), 160, 7)
    assert shared == cut.shared(ALL_KINDS)
    assert len(parameters) == 3
    wanted = [
        one for i, at in enumerate(operands) for one in (at.data_ptr(), {2: n + 8, 4: n}.get(i, 0))
    ]
    wanted += [one.data_ptr() for one in outputs]
    table = (ctypes.c_uint64 * len(wanted)).from_address(parameters[2])
    assert list(table) == wanted
    sizes = (ctypes.c_uint32 * 3).from_address(parameters[2] + 8 * len(wanted))
    assert list(sizes) == [m, n, k]
    assert driver.compiled[0] == hopper_stream(ALL_KINDS, cut, "float16")


@pytest.mark.parametrize(
    ("n", "split", "blocks"),
    [(8, 1, 1), (14336, 1, 132), (4096, 2, 128), (14336, 2, 132), (1000, 4, 64), (14336, 4, 120)],
)
def test_blocks(n: int, split: int, blocks: int) -> None:
    """As many as there is work for, and as run at once."""
    assert StreamKernel(16, 64, 2, 6, split).blocks(16, n, 1, 132) == blocks
    assert StreamKernel(16, 64, 2, 6, split).blocks(16, n, 1, 1) == split
