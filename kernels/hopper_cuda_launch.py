"""Launches of GEMMs in CUDA C++ for Hopper; calls are to be quick for the host.

Of those of ``hopper_cuda.py`` and, of few rows, of ``hopper_stream.py``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from fusepass.graph.epilogue import Epilogue, parse
from fusepass.kernels import kept_cubins
from fusepass.kernels.hopper_cuda import NAME, Shape, hopper_cuda
from fusepass.kernels.hopper_stream import NAME as STREAM_NAME
from fusepass.kernels.hopper_stream import Stream, hopper_stream
from fusepass.torch_private import nvrtc
from fusepass.torch_private.mapped_kernel import Map, tensor_map

_KEPT = 64  # launches that each call in compiled code remembers
_IN_TRITON = {"float16": "fp16", "bfloat16": "bf16"}
_SWIZZLES = {128: 3, 64: 2, 32: 1}  # by bytes of a tile's row, CUtensorMapSwizzle
_DEPTH = 64  # of K in a tile


Cut = Shape | Stream
"""How the work of a GEMM is cut; which of the two says which kernel computes it."""


def numbers_of(cut: Cut) -> tuple[Any, ...]:
    """A cut as generated code is given it."""
    return ("stream" if isinstance(cut, Stream) else "tiles", *astuple(cut))


def _cut(kind: str, *numbers: Any) -> Cut:
    return Stream(*numbers) if kind == "stream" else Shape(*numbers)


@functools.lru_cache(maxsize=512)
def _compiled(text: str, shape: Cut, dtype: str, device: int) -> Any:
    """The driver's kernel, with as much shared memory as its blocks need."""
    epilogue = parse(text)
    if isinstance(shape, Stream):
        source, name = hopper_stream(epilogue, shape, dtype), STREAM_NAME
    else:
        source, name = hopper_cuda(epilogue, shape, dtype), NAME
    with torch.cuda.device(device):
        made = kept_cubins.compiled(source, name, "90a")
        nvrtc.give_shared_memory(made, shape.shared(epilogue))
    return made


def prepare(epilogue: Epilogue, shape: Cut, dtype: torch.dtype, device: torch.device) -> None:
    """Compile what calls of this kind will launch.

    Raises:
        Exception: there is no NVRTC, or it refuses.
    """
    _compiled(epilogue.text(), shape, str(dtype).removeprefix("torch."), device.index or 0)


@functools.lru_cache(maxsize=512)
def filler(
    text: str,
    shape: tuple[Any, ...],
    dtype: str,
    sizes: tuple[int, int],
    strides: tuple[int, int],
    device: int,
) -> Callable[..., None]:
    """What computes a call, with ``device`` the current one.

    It is called with the rows of x, for each operand of kind ``full`` how far its rows are apart,
    then with x, the weights, the operands and the outputs, which are filled; only the addresses of
    these tensors are asked for.

    Args:
        text: of the epilogue.
        shape: by :func:`numbers_of`.
        dtype: of x and the weights; torch's name.
        sizes: N and K.
        strides: from row to row of x, and from column to column of the weights.
        device: its number.
    """
    epilogue, cut = parse(text), _cut(*shape)
    kernel = _compiled(text, cut, dtype, device)
    (n, k), products = sizes, epilogue.products
    full = [i for i, one in enumerate(epilogue.operands) if one.kind == "full"]
    x_rows, w_rows = cut.boxes(products)
    kinds = [output.dtype for output in epilogue.outputs]
    piece = cut.piece(epilogue) if isinstance(cut, Shape) else None
    fields: list[Any] = []
    for i in range(len(epilogue.operands)):
        fields += [(f"p{i}", ctypes.c_uint64), (f"s{i}", ctypes.c_uint64)]
    if piece is None:  # results are written by threads, not by TMA
        fields += [(f"o{i}", ctypes.c_uint64) for i in range(len(kinds))]
    fields += [(name, ctypes.c_uint32) for name in "MNK"]
    table = type("Table", (ctypes.Structure,), {"_fields_": fields})
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    shared, threads = cut.shared(epilogue), cut.threads
    held: dict[tuple[int, ...], _Held] = {}

    def hold(m: int, given: tuple[int, ...]) -> _Held:
        apart = dict(zip(full, given[: len(full)], strict=True))
        x, *rest = given[len(full) :]
        weights, rest = rest[:products], rest[products:]
        operands, outputs = rest[: len(epilogue.operands)], rest[len(epilogue.operands) :]
        maps = [_map(dtype, x, (m, k), strides[0], (x_rows, _DEPTH))]
        maps += [_map(dtype, w, (n, k), strides[1], (w_rows, _DEPTH)) for w in weights]
        numbers = [one for i, at in enumerate(operands) for one in (at, apart.get(i, 0))]
        if piece is None:
            numbers += outputs
        else:
            for kind, output in zip(kinds, outputs, strict=True):
                maps.append(_map(kind, output, (m, n), n, (64, piece)))
        values = [*maps, table(*numbers, m, n, k)]
        blocks = cut.blocks(m, n, products, processors)
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        return blocks, values, pointers

    def fill(m: int, *given: Any) -> None:
        if m == 0:
            return
        key = m, *given[: len(full)], *map(Tensor.data_ptr, given[len(full) :])
        found = held.get(key)
        if found is None:
            if len(held) >= _KEPT:
                held.clear()
            found = held[key] = hold(m, key[1:])
        stream = nvrtc.stream(device)
        nvrtc.launch_with(kernel, (found[0], 1, 1), threads, shared, stream, found[2])

    return fill


_Held = tuple[int, list[Any], ctypes.Array[ctypes.c_void_p]]
"""Blocks of a launch, its parameters, and where these are."""


def _map(
    dtype: str, address: int, sizes: tuple[int, int], stride: int, tile: tuple[int, int]
) -> ctypes.Array[Any]:
    """A descriptor of a matrix in tiles of at most 128 bytes a row."""
    bytes_each = tile[1] * getattr(torch, dtype).itemsize
    of = Map(0, 0, 0, _IN_TRITON[dtype], tile, _SWIZZLES[bytes_each])
    return tensor_map(of, address, *sizes, stride)


def launch(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], text: str, shape: Cut
) -> list[Tensor]:
    """The outputs, by one launch."""
    device = x.device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch(x, weights, operands, text, shape)
    epilogue, first = parse(text), weights[0]
    (m, k), n = x.shape, first.shape[1]
    dtype, strides = str(x.dtype).removeprefix("torch."), (x.stride(0), first.stride(1))
    fill = filler(text, numbers_of(shape), dtype, (n, k), strides, device)
    outputs = [x.new_empty((m, n), dtype=getattr(torch, one.dtype)) for one in epilogue.outputs]
    kinds = zip(epilogue.operands, operands, strict=True)
    apart = [one.stride(0) for kind, one in kinds if kind.kind == "full"]
    fill(m, *apart, x, *weights, *operands, *outputs)
    return outputs
