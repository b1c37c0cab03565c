"""How the work of a GEMM region is cut, and which cuts there are."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue, Output
from fusepass.kernels.codegen.cuda_source import TYPES
from fusepass.kernels.gemm.hopper.row_source import WIDEST, RowKernel
from fusepass.kernels.gemm.hopper.stream_source import StreamKernel
from fusepass.kernels.gemm.hopper.tile_source import MEMORY, TileKernel
from fusepass.kernels.gemm.hopper.tma_plan import GROUPS, fetched_by_tma, places

FEW_ROWS = 64  # up to these the time is that of reading the weights
STREAMED_ROWS = 128  # on Hopper up to these nearly so
_ONE_HALF = ({"bfloat16"}, {"float16"})
_GLUON = "triton.experimental.gluon.language.nvidia.hopper"
_EVERY = 1 << 31  # programs: as many as there is work for


@dataclass(frozen=True)
class Tile:
    """How the work is cut.

    Attributes:
        m, n, k: of a tile of the product; of a pair, ``n`` counts both's columns but in the forms
            for few rows of plain loads and of streams.
        warps: of a program.
        stages: tiles of operands in flight.
        programs: on each multiprocessor; two overlap one's epilogue with the other's products.
        split: whether the epilogue takes a tile in two halves.
        group: rows of tiles that go together.
        itemsize: of the operands, in bytes: of half types, or of fp32, multiplied as TF32.
        form: of the kernel: ``grid`` of ``triton_source.py``, ``pingpong`` or ``cooperative`` of
            ``gluon_source.py``, ``rows`` or ``row`` of ``few_rows_source.py``, ``joint`` or
            ``turns`` of ``tile_source.py``, ``stream`` of ``stream_source.py``, ``ring`` of
            ``row_source.py``, whose ``stages`` are each warp's.
        blocks: that share K, of a ``stream``.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    programs: int = 1
    split: bool = False
    group: int = 8
    itemsize: int = 2
    form: str = "grid"
    blocks: int = 1

    @property
    def name(self) -> str:
        """Short, for tables and reports: ``128x256x64w8s4``; ``rows16x64x64w4s3t`` of TF32."""
        more = f"c{self.programs}" * (self.programs > 1) + "h" * self.split
        more += "t" * (self.itemsize == 4) + f"x{self.blocks}" * (self.blocks > 1)
        kind = "" if self.form == "grid" else self.form
        return f"{kind}{self.m}x{self.n}x{self.k}w{self.warps}s{self.stages}{more}"

    @property
    def candidate(self) -> str:
        """What the table of choices calls its kernel."""
        return f"{'cuda' if self.language == 'cuda' else 'triton'} {self.name}"

    @property
    def language(self) -> str:
        """Its kernel's: ``triton``, ``gluon`` or ``cuda``."""
        return "cuda" if self.cuda is not None else "gluon" if self.groups else "triton"

    @property
    def cuda(self) -> TileKernel | StreamKernel | RowKernel | None:
        """What a kernel in CUDA C++ for Hopper is told of it; None of the others."""
        if self.form == "ring":
            return RowKernel(self.k, self.stages, self.warps)
        if self.form == "stream":
            return StreamKernel(self.m, self.n, self.k // 64, self.stages, self.blocks)
        if self.form not in ("joint", "turns"):
            return None
        return TileKernel(self.m, self.n, self.stages, self.form == "turns")

    def bytes_in_flight(self, products: int) -> int:
        """Shared memory for the operands, in bytes."""
        weights = self.n * products if self.plain else self.n
        return self.stages * (self.m + weights) * self.k * self.itemsize

    @property
    def plain(self) -> bool:
        """Whether it is of a kernel that reads by plain loads, one tile per program."""
        return self.form in ("row", "rows")

    @property
    def few_rows(self) -> bool:
        """Whether it is of a kernel for few rows, whose time is that of reading the weights."""
        return self.form == "stream" or (self.form != "grid" and self.m <= FEW_ROWS)

    @property
    def groups(self) -> int:
        """Groups of warps that multiply, where others load; else 0."""
        return GROUPS.get(self.form, 0)

    @property
    def rounds_by_host(self) -> bool:
        """Whether descriptors round its operands to TF32, so that the host has to make them."""
        return self.groups > 0 and self.itemsize == 4

    def rounds_too_slowly(self, device: torch.device) -> bool:
        """Whether its instructions round to TF32 what those of Hopper then read from shared memory.

        Tiles of many rows took 1.6 to 3.8 times as long as cuBLAS on an H100.
        """
        return self.itemsize == 4 and not (self.groups or self.few_rows) and is_hopper(device)

    def tail(self, epilogue: Epilogue) -> int:
        """Steps of K at a tile's end that are computed by halves of its columns; or 0.

        Measured for tiles of 128 columns (4 % of 2048 x 1024 -> 1024); larger ones lose 2 %, since
        their instructions are halved, and what is read beside a product has no place early enough.
        """
        alone = epilogue.products == 1 and not fetched_by_tma(epilogue)
        return 4 if self.form == "cooperative" and self.n == 128 and alone else 0

    def pieces(self, products: int, n: Any) -> Any:
        """How often an epilogue is computed along a row, in the tiles that cover n columns."""
        split = products == 1 and (self.groups > 0 or self.split)
        width = self.n if self.plain or products == 1 else self.n // 2
        return (n + width - 1) // width * (2 if split else 1)

    def bytes_needed(self, epilogue: Epilogue) -> int:
        """Shared memory in bytes: of one program, or of operands in all on a multiprocessor."""
        if self.cuda is not None:
            return self.cuda.shared(epilogue)
        held = self.bytes_in_flight(epilogue.products)
        if self.form == "grid":
            return max(held * self.programs, held + self._exchanged(epilogue))
        if self.groups:
            count = self.groups * places(epilogue, self.form, self.itemsize)
            held += count * self.m * self.n // 2 * self.itemsize
        across = sum(output.over == "rows" for output in epilogue.reduced)  # warps, in fp32
        held += across * self.groups * self.n * 2 * self.warps
        return held + 1024 * (self.groups > 0)

    def _exchanged(self, epilogue: Epilogue) -> int:
        """Bytes through which the compiler of a ``grid`` gives values to other threads."""
        kinds = {output.dtype for output in epilogue.stored}
        wide = any(operand.kind == "full" for operand in epilogue.operands) or epilogue.reduced
        halved = self.split or epilogue.products == 2
        each = 4 if wide or kinds not in _ONE_HALF else 2
        return self.m * (self.n // 2 if halved else self.n) * each + 256

    def shape_of(self, output: Output, products: int, m: Any, n: Any) -> tuple[Any, Any]:
        """Shape of what a kernel stores for an output: partial results if it is reduced."""
        if not output.over:
            return m, n
        tiles_m = (m + self.m - 1) // self.m
        return (tiles_m, n) if output.over == "rows" else (self.pieces(products, n), m)

    def takes(self, m: Any, weights: Sequence[Tensor], epilogue: Epilogue) -> bool:
        """Whether it is meant for that many rows, reads the weights and stores what is asked."""
        if weights[0].dtype.itemsize != self.itemsize:
            return False
        if self.itemsize == 4 and m == 1 and self.form != "row":
            return False  # libraries compute one row in single precision, not as TF32
        if epilogue.reduced and self.plain and self.m <= FEW_ROWS:
            return False
        kinds = {output.dtype for output in epilogue.stored}
        if self.cuda is not None:
            lies = weights[0].dim() == 2 and weights[0].stride(0) == 1
            fits = kinds in _ONE_HALF
            if self.few_rows:
                fits = kinds <= TYPES.keys() and isinstance(m, int) and m <= self.m
            if self.form == "ring":
                fits = fits and int(weights[0].shape[0]) <= WIDEST
            return fits and not epilogue.reduced and lies and is_hopper(weights[0].device)
        if self.groups:
            single = self.itemsize == 4
            along_k = all(weight.stride(-2) == 1 for weight in weights)
            if single and not (along_k and weights[0].dim() == 2):
                return False  # its instructions read TF32 along K only; for batches see by_host
            fits = kinds == {"float32"} if single else kinds in _ONE_HALF
            enough = not self.few_rows or (isinstance(m, int) and m <= self.m)
            return fits and enough and on_hopper(weights[0].device)
        transposed = all(weight.stride(-2) == 1 for weight in weights)
        if self.form == "grid":
            return transposed or epilogue.products == 1
        if not isinstance(m, int) or not transposed:
            return False
        return m == 1 if self.form == "row" else m <= FEW_ROWS or self.m > FEW_ROWS


# Best on an H200 at the shapes of BASELINES.md §2 and §3, by tests/perf/results.
_HOPPER = (
    Tile(128, 128, 64, 4, 5, form="pingpong"),
    Tile(128, 256, 64, 8, 4, form="cooperative"),
    Tile(128, 128, 64, 8, 6, form="cooperative"),
)
_CUDA = (
    Tile(128, 128, 64, 8, 6, form="turns"),
    Tile(128, 192, 64, 8, 4, form="turns"),
    Tile(128, 128, 64, 8, 6, form="joint"),
    Tile(128, 192, 64, 8, 4, form="joint"),
    Tile(128, 224, 64, 8, 4, form="joint"),
    Tile(128, 256, 64, 8, 4, form="joint"),
    Tile(192, 192, 64, 12, 3, form="joint"),
)
_HOPPER_FEW = {  # by products; up to 64 rows 2 to 3 % faster than plain loads, with 16 slower
    1: (Tile(64, 32, 128, 4, 7, form="cooperative"),),
    2: (Tile(64, 128, 128, 4, 4, form="cooperative"),),
}
_HOPPER_SINGLE = (  # results take twice the room
    Tile(128, 128, 32, 4, 5, itemsize=4, form="pingpong"),
    Tile(128, 128, 32, 4, 3, itemsize=4, form="pingpong"),
    Tile(128, 256, 32, 8, 3, itemsize=4, form="cooperative"),
    Tile(128, 128, 32, 8, 6, itemsize=4, form="cooperative"),
    Tile(128, 128, 32, 8, 5, itemsize=4, form="cooperative"),
)
_PAIR = (
    Tile(128, 256, 64, 8, 4),
    Tile(64, 256, 64, 4, 4),
    Tile(64, 128, 64, 4, 5),
)
_ONE = (
    Tile(128, 128, 64, 8, 4, form="rows"),
    Tile(128, 128, 64, 4, 3, programs=2, split=True),
    Tile(128, 256, 64, 8, 3, split=True),
    Tile(128, 128, 64, 8, 4),
)
_RING = {  # by products; pieces of 1,024 of one product take 10 to 13 % longer in an MLP on an H200
    1: Tile(1, 1, 2048, 12, 3, form="ring"),
    2: Tile(1, 2, 1024, 8, 3, form="ring"),
}
# First those of long rows and of shorter ones, as tile_heuristic.py takes them; then what was best
# on an H200 of fewer that were tried.
_ROW_PAIR = (
    Tile(1, 2, 2048, 8, 1, form="row"),
    Tile(1, 8, 512, 4, 1, form="row"),
    Tile(1, 2, 256, 2, 1, form="row"),
    Tile(1, 4, 1024, 4, 3, form="row"),
    Tile(1, 2, 2048, 4, 3, form="row"),
)
_ROW_ONE = (
    Tile(128, 128, 64, 8, 4, form="rows"),
    Tile(1, 1, 1024, 4, 1, form="row"),
    Tile(1, 1, 2048, 8, 1, form="row"),
    Tile(1, 4, 512, 4, 1, form="row"),
    Tile(1, 8, 512, 4, 3, form="row"),
    Tile(1, 4, 512, 2, 3, form="row"),
)
_ROWS_PAIR = (
    Tile(16, 64, 128, 4, 3, form="rows"),
    Tile(16, 32, 128, 2, 3, form="rows"),
    Tile(32, 64, 64, 4, 4, form="rows"),
    Tile(64, 64, 64, 4, 4, form="rows"),
    Tile(64, 64, 64, 4, 3, form="rows"),
)
_ROWS_ONE = (
    Tile(128, 128, 64, 8, 4, form="rows"),
    Tile(16, 16, 512, 2, 3, form="rows"),
    Tile(16, 32, 256, 2, 4, form="rows"),
    Tile(32, 32, 256, 4, 4, form="rows"),
    Tile(32, 16, 256, 2, 4, form="rows"),
    Tile(64, 32, 128, 4, 6, form="rows"),
    Tile(64, 32, 64, 4, 8, form="rows"),
)


def tiles(epilogue: Epilogue, memory: int = 1 << 30) -> dict[str, Tile]:
    """The tiles there are, by name.

    Args:
        epilogue: of one or two products.
        memory: shared memory in bytes that one program may have; larger tiles are left out.
    """
    one, pair = (*_ONE, *_ROW_ONE, *_ROWS_ONE), (*_PAIR, *_ROW_PAIR, *_ROWS_PAIR)
    half = one if epilogue.products == 1 else pair
    few = _HOPPER_FEW[epilogue.products]
    single = [replace(tile, k=tile.k // 2, itemsize=4) for tile in (*few, *half)]  # as many bytes
    hopper = (*_HOPPER, *few)
    stream = (*_streams(epilogue.products), _RING[epilogue.products])
    every = (*hopper, *_CUDA, *stream, *half, *_HOPPER_SINGLE, *single)
    return {tile.name: tile for tile in every if tile.bytes_needed(epilogue) <= memory}


def ring_of(epilogue: Epilogue, memory: int = 1 << 30) -> Tile | None:
    """The tile of the kernel for one row in CUDA C++; None where its ring has no room.

    Args:
        epilogue: of one or two products.
        memory: shared memory in bytes that one program may have.
    """
    tile = _RING[epilogue.products]
    return tile if tile.bytes_needed(epilogue) <= memory else None


@functools.cache
def _streams(products: int) -> tuple[Tile, ...]:
    """With as many steps of 128 of K in flight as there is room for; more than eight gain nothing.

    Wider tiles read fewer bytes of x; narrower ones may be just enough for all multiprocessors.
    """
    made, alone = [], Epilogue(products, (), (), ())
    for rows, columns, blocks in itertools.product(_STREAM_ROWS, (64, 56, 48, 32), (1, 2, 4)):
        fitting = [
            stages
            for stages in range(1, 9)
            if StreamKernel(rows, columns, 2, stages, blocks).shared(alone) <= MEMORY
        ]
        made.append(Tile(rows, columns, 128, 5, fitting[-1], form="stream", blocks=blocks))
    return tuple(made)


_STREAM_ROWS = (8, 16, 32, 64, 96, STREAMED_ROWS)


def programs(tile: Tile, products: int, m: Any, n: Any, multiprocessors: int) -> tuple[Any, int]:
    """Tiles of the whole product, and programs that at most run at a time."""
    if tile.plain:
        return ((m + tile.m - 1) // tile.m) * ((n + tile.n - 1) // tile.n), _EVERY
    width = tile.n // products
    most = multiprocessors * tile.programs
    return ((m + tile.m - 1) // tile.m) * ((n + width - 1) // width), most


def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have on a device; plenty where that is not known."""
    if device.type != "cuda":
        return 1 << 30
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 1 << 30))


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Whether a device has the instructions of sm_90a."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] == 9


@functools.cache
def on_hopper(device: torch.device) -> bool:
    """Whether a device has them, and Triton a language that names them."""
    if not is_hopper(device):
        return False
    try:
        return importlib.util.find_spec(_GLUON) is not None
    except ModuleNotFoundError:  # not even what it would be part of
        return False


def max_few_rows(x: Tensor) -> int:
    """Rows of a matrix up to which there are kernels for few rows; weights may have any layout."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    return STREAMED_ROWS if half and is_hopper(x.device) else FEW_ROWS


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a device; 1 where there are none."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
