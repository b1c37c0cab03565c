"""Launch kernels whose TMA descriptors the host makes. Run on 2.11.

A descriptor that a kernel makes for itself needs memory with each launch, and its first load waits
until it has been written and read back. Made by the host it is a parameter of the kernel: 128
bytes that say where a matrix lies, how long its rows are, and which tiles are taken of it (CUDA
driver API, "Tensor Map Object Management"). The parameters of a launch are kept by the addresses
and sizes in them: a loop in a user's program comes with few.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedCudaKernel

from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.cuda.tma_descriptors import TF32, Matrix

THREADS = 32  # in a warp
DTYPES = {"fp16": torch.float16, "fp32": torch.float32, "bf16": torch.bfloat16}
DTYPES["tf32"] = torch.float32
_KEPT = 64  # launches that each kernel remembers
_KINDS = {"fp16": 6, "fp32": 7, "bf16": 9, "tf32": TF32}  # CUtensorMapDataType
_MAP_BYTES, _ALIGNED = 128, 64
_NOT_INTERLEAVED, _ZEROS_OUTSIDE = 0, 0
_L2_PROMOTION = 2  # to 128 bytes, a row of a tile
_NUMBERS = {
    "O": ctypes.c_void_p,
    "i": ctypes.c_int32,
    "I": ctypes.c_uint32,
    "l": ctypes.c_int64,
    "K": ctypes.c_uint64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}


@dataclass(frozen=True)
class Map:
    """A matrix, as a launch makes its descriptor.

    Attributes:
        rows, columns, stride: which of the launch's arguments these are; negative, minus a number
            that the kernel was compiled for.
        dtype: as Triton calls it; ``tf32`` where fp32 is rounded to that on the way.
        tile: rows and columns of one of the copies that a tile is copied by.
        swizzle: how they lie in shared memory, CUtensorMapSwizzle.
    """

    rows: int
    columns: int
    stride: int
    dtype: str
    tile: tuple[int, ...]
    swizzle: int


class MappedKernel(StaticallyLaunchedCudaKernel):
    """A compiled kernel that takes descriptors in place of some of its pointers."""

    def __init__(self, kernel: Any, matrices: Mapping[str, Matrix]) -> None:
        super().__init__(kernel)
        kinds = kernel.src.signature
        names = [
            name
            for i, name in enumerate(self.arg_names)
            if i not in self.full_constexprs and kinds[name] != "constexpr"
        ]
        # One letter for each argument: torch 2.15 has more for a descriptor, which it makes itself.
        self.arg_tys = "".join(self.extract_type(kinds[name]) for name in names)
        fixed = kernel.src.constants.items()
        known = {self.arg_names[i]: value for (i,), value in fixed}
        self.maps: dict[int, Map] = {}  # by the place among a launch's arguments
        made = iter(kernel.metadata.tensordesc_meta)
        for at, name in enumerate(names):
            if name in matrices:
                of, meta = matrices[name], next(made)
                sizes = of.rows, of.columns, of.stride
                rows, columns, stride = (
                    names.index(one) if one in names else -known[one] for one in sizes
                )
                dtype = kinds[name].removeprefix("tensordesc<").partition("[")[0]
                if dtype == "fp32" and of.multiplied:
                    dtype = "tf32"
                self.maps[at] = Map(
                    rows, columns, stride, dtype, tuple(meta["block_size"]), meta["swizzle"]
                )
        self.held: dict[tuple[Any, ...], _KeptDescriptors] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "held": {}}

    def extract_type(self, ty: str) -> str:
        """The letter of an argument's type: ``M`` of what a descriptor is made of."""
        return "M" if ty.startswith("tensordesc") else str(super().extract_type(ty))

    def run(self, grid_x: int, grid_y: int, grid_z: int, stream: int, *args: Any) -> None:
        """Launch it on a stream; what it is given is copied before this returns.

        Raises:
            RuntimeError: the driver refuses.
        """
        grid = grid_x, grid_y, grid_z
        if 0 in grid:
            return
        given = tuple([one.data_ptr() if isinstance(one, Tensor) else one for one in args])
        held = self.held.get(given) or self._hold(given)
        function = ctypes.c_void_p(self.function)  # of a plain number ctypes passes 32 bits
        threads = self.num_warps * THREADS
        nvrtc.launch_with(function, grid, threads, self.shared, stream, held.pointers)

    def _hold(self, given: tuple[Any, ...]) -> _KeptDescriptors:
        """The parameters of launches with these arguments, from now on kept."""
        values: list[Any] = []
        for at, (kind, value) in enumerate(zip(self.arg_tys, given, strict=True)):
            of = self.maps.get(at)
            if of is not None:
                sizes = of.rows, of.columns, of.stride
                rows, columns, stride = (-one if one < 0 else given[one] for one in sizes)
                values.append(tensor_map(of, value, rows, columns, stride))
                values += [ctypes.c_int32(rows), ctypes.c_int32(columns)]
                values += [ctypes.c_int64(stride), ctypes.c_int64(1)]
            else:
                values.append(_NUMBERS[kind](value))
        nothing = [self.has_global_scratch, self.has_profile_scratch].count(True)
        values += [ctypes.c_void_p() for _ in range(nothing)]
        held = _KeptDescriptors(
            values, (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        )
        if len(self.held) >= _KEPT:
            self.held = {}  # launches in other threads keep what they read
        self.held[given] = held
        return held


@dataclass(frozen=True)
class _KeptDescriptors:
    """Parameters of a launch.

    Attributes:
        values: what the pointers point to.
        pointers: as the driver takes them.
    """

    values: list[Any]
    pointers: ctypes.Array[ctypes.c_void_p]


def tensor_map(of: Map, address: int, rows: int, columns: int, stride: int) -> ctypes.Array[Any]:
    """A descriptor of the matrix at ``address``.

    Args:
        of: its kind.
        address: a multiple of 16 bytes.
        rows: how many, at least one.
        columns: likewise.
        stride: from row to row, in elements; at least ``columns``.

    Raises:
        RuntimeError: the driver refuses.
    """
    room = ctypes.create_string_buffer(_MAP_BYTES + _ALIGNED)
    start = -ctypes.addressof(room) % _ALIGNED
    made = (ctypes.c_char * _MAP_BYTES).from_buffer(room, start)
    dimensions = (ctypes.c_uint64 * 2)(columns, rows)
    strides = (ctypes.c_uint64 * 1)(stride * DTYPES[of.dtype].itemsize)
    box, steps = (ctypes.c_uint32 * 2)(*of.tile[::-1]), (ctypes.c_uint32 * 2)(1, 1)
    where = ctypes.c_void_p(address)
    try:
        nvrtc.driver_call(
            "cuTensorMapEncodeTiled",
            *(made, _KINDS[of.dtype], 2, where, dimensions, strides, box, steps),
            *(_NOT_INTERLEAVED, of.swizzle, _L2_PROMOTION, _ZEROS_OUTSIDE),
        )
    except RuntimeError as error:
        shape = f"({rows}, {columns}) of {of.dtype}, rows {stride} apart, at {address:#x}"
        raise RuntimeError(f"no TMA descriptor of a matrix {shape}: {error}") from error
    return made
