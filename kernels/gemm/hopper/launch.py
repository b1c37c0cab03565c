"""Launches of GEMMs in CUDA C++ for Hopper; calls are to be quick for the host.

It launches the kernels of ``tile_source.py`` and, for few rows, those of ``stream_source.py`` and
``row_source.py``.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue, parse
from fusepass.kernels.codegen import cubin_cache
from fusepass.kernels.gemm.hopper import row_source, stream_source, tile_source
from fusepass.kernels.gemm.hopper.row_source import RowKernel
from fusepass.kernels.gemm.hopper.stream_source import StreamKernel
from fusepass.kernels.gemm.hopper.tile_source import TileKernel
from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.cuda.tma_launch import Map, tensor_map
from fusepass.torch_private.inductor.host_call import HostCall

_KEPT = 64  # launches that each call in compiled code remembers
_IN_TRITON = {"float16": "fp16", "bfloat16": "bf16"}
_SWIZZLES = {128: 3, 64: 2, 32: 1}  # by bytes of a tile's row, CUtensorMapSwizzle
_DEPTH = 64  # of K in a tile


Cut = TileKernel | StreamKernel | RowKernel
"""How the work of a GEMM is cut; which of them says which kernel computes it."""

_KINDS: dict[str, tuple[type[Cut], str, Callable[..., str]]] = {
    "tiles": (TileKernel, tile_source.NAME, tile_source.hopper_cuda),
    "stream": (StreamKernel, stream_source.NAME, stream_source.hopper_stream),
    "row": (RowKernel, row_source.NAME, row_source.hopper_row),
}


def numbers_of(cut: Cut) -> tuple[Any, ...]:
    """A cut as generated code is given it."""
    (kind,) = (kind for kind, (of, *_) in _KINDS.items() if isinstance(cut, of))
    return (kind, *astuple(cut))


def _vectors(cut: Cut) -> int:
    """How many vectors of a norm its kernel reads."""
    return len(cut.vector_dtypes) if isinstance(cut, RowKernel) else 0


def _cut(kind: str, *numbers: Any) -> Cut:
    return _KINDS[kind][0](*numbers)


@functools.lru_cache(maxsize=512)
def _compiled(text: str, cut: Cut, dtype: str, device: int) -> Any:
    """The driver's kernel, with as much shared memory as its blocks need at most."""
    epilogues = _epilogues(text)
    _, name, source = _KINDS[numbers_of(cut)[0]]
    given = epilogues if isinstance(cut, RowKernel) else epilogues[0]
    with torch.cuda.device(device):
        made = cubin_cache.load_or_compile(source(given, cut, dtype), name, "90a")
        nvrtc.give_shared_memory(made, cut.shared(epilogues[0]))
    return made


@functools.lru_cache(maxsize=512)
def _epilogues(text: str) -> tuple[Epilogue, ...]:
    """The epilogues of a text: one of all products, or one for each."""
    return tuple(map(parse, text.split()))


@functools.lru_cache(maxsize=512)
def _joint_epilogue(text: str) -> Epilogue:
    """An epilogue that has the products, operands and outputs of all of a text, and no steps."""
    each = _epilogues(text)
    if len(each) == 1:
        return each[0]
    operands = tuple(operand for one in each for operand in one.operands)
    return Epilogue(len(each), operands, (), tuple(made for one in each for made in one.outputs))


def prepare(text: str, cut: Cut, dtype: torch.dtype, device: torch.device) -> None:
    """Compile what calls of this kind will launch.

    Args:
        text: of the epilogue, or of one for each product, with spaces in between.
        cut: of the kernel.
        dtype: of x and the weights.
        device: to be launched on.

    Raises:
        Exception: there is no NVRTC, or it refuses.
    """
    _compiled(text, cut, str(dtype).removeprefix("torch."), device.index or 0)


@functools.lru_cache(maxsize=512)
def make_launcher(
    text: str,
    shape: tuple[Any, ...],
    dtype: str,
    sizes: tuple[int, int],
    strides: tuple[int, int],
    device: int,
) -> Callable[..., None]:
    """What computes a call, with ``device`` the current one.

    It is called with the rows of x, for each operand of kind ``full`` how far its rows are apart,
    then with x, the weights, a norm's vectors, the operands and the outputs, which are filled; only
    the addresses of these tensors are asked for.

    Args:
        text: of the epilogue, or of one for each product, with spaces in between.
        shape: by :func:`numbers_of`.
        dtype: of x and the weights; torch's name.
        sizes: N, of all products that have epilogues of their own, and K.
        strides: from row to row of x, and from column to column of the weights.
        device: its number.
    """
    epilogue, cut = _joint_epilogue(text), _cut(*shape)
    kernel = _compiled(text, cut, dtype, device)
    (n, k), products = sizes, epilogue.products
    full = [i for i, one in enumerate(epilogue.operands) if one.kind == "full"]
    values_of = _values_of(epilogue, cut, dtype, sizes, strides)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    first = _epilogues(text)[0]
    shared = cut.shared(first, k) if isinstance(cut, RowKernel) else cut.shared(first)
    # Code from a cache may have been made where the driver was newer.
    early = not isinstance(cut, TileKernel) and cut.early and nvrtc.begins_early()
    held: dict[tuple[int, ...], _Held] = {}

    def hold(m: int, given: tuple[int, ...], stream: int) -> _Held:
        apart = dict(zip(full, given[: len(full)], strict=True))
        values = values_of(m, apart, given[len(full) :])
        blocks = cut.blocks(m, n, products, processors)
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        how = (blocks, 1, 1), cut.threads, shared, stream
        return values, pointers, how, nvrtc.early(*how) if early else None

    def fill(m: int, *given: Any) -> None:
        if m == 0:
            return
        stream = nvrtc.stream(device)
        key = stream, m, *given[: len(full)], *map(Tensor.data_ptr, given[len(full) :])
        found = held.get(key)
        if found is None:
            if len(held) >= _KEPT:
                held.clear()
            found = held[key] = hold(m, key[2:], stream)
        _, pointers, how, config = found
        if config is None:
            nvrtc.launch_with(kernel, *how, pointers)
        else:
            nvrtc.launch_early(kernel, config, pointers)

    return fill


_Held = tuple[
    list[Any], ctypes.Array[ctypes.c_void_p], tuple[tuple[int, int, int], int, int, int], Any
]
"""Parameters of a launch, where these are, and how it is launched."""


def _values_of(
    epilogue: Epilogue, cut: Cut, dtype: str, sizes: tuple[int, int], strides: tuple[int, int]
) -> Callable[[int, dict[int, int], Sequence[int]], list[Any]]:
    """What makes the parameters of a launch.

    It is given the rows of x, how far those of operands of kind ``full`` are apart, by their
    places, and the addresses of x, the weights, a norm's vectors, the operands and the outputs.
    """
    (n, k), products = sizes, epilogue.products
    kinds = [output.dtype for output in epilogue.outputs]
    by_threads = not isinstance(cut, TileKernel)  # or results are written by TMA
    vectors = _vectors(cut)
    addresses = ["x", *(f"w{i}" for i in range(products)), "apart"] * isinstance(cut, RowKernel)
    begins = [*itertools.accumulate(_widths(cut))][:-1]
    addresses += [f"b{i}" for i in range(1, len(begins) + 1)]
    addresses += [f"v{i}" for i in range(vectors)]
    for i in range(len(epilogue.operands)):
        addresses += [f"p{i}", f"s{i}"]
    addresses += [f"o{i}" for i in range(len(kinds))] * by_threads
    fields: list[Any] = [(name, ctypes.c_uint64) for name in addresses]
    fields += [(name, ctypes.c_uint32) for name in "MNK"]
    table = type("Table", (ctypes.Structure,), {"_fields_": fields})

    def values(m: int, apart: dict[int, int], given: Sequence[int]) -> list[Any]:
        x, *rest = given
        weights, rest = rest[:products], rest[products:]
        of_norm, rest = rest[:vectors], rest[vectors:]
        operands, outputs = rest[: len(epilogue.operands)], rest[len(epilogue.operands) :]
        numbers = [one for i, at in enumerate(operands) for one in (at, apart.get(i, 0))]
        numbers += outputs if by_threads else []
        if isinstance(cut, RowKernel):
            return [table(x, *weights, strides[1], *begins, *of_norm, *numbers, m, n, k)]
        x_rows, w_rows = cut.boxes(products)
        maps = [_tensor_map(dtype, x, (m, k), strides[0], (x_rows, _DEPTH))]
        maps += [_tensor_map(dtype, w, (n, k), strides[1], (w_rows, _DEPTH)) for w in weights]
        if isinstance(cut, TileKernel):
            box = 64, cut.piece(epilogue)
            for kind, output in zip(kinds, outputs, strict=True):
                maps.append(_tensor_map(kind, output, (m, n), n, box))
        return [*maps, table(*numbers, m, n, k)]

    return values


def _tensor_map(
    dtype: str, address: int, sizes: tuple[int, int], stride: int, tile: tuple[int, int]
) -> ctypes.Array[Any]:
    """A descriptor of a matrix in tiles of at most 128 bytes a row."""
    bytes_each = tile[1] * getattr(torch, dtype).itemsize
    of = Map(0, 0, 0, _IN_TRITON[dtype], tile, _SWIZZLES[bytes_each])
    return tensor_map(of, address, *sizes, stride)


def host_call(values: Sequence[Tensor], products: int, text: str, cut: Cut) -> HostCall:
    """What generated code calls to launch a kernel.

    Args:
        values: fake tensors of x, the weights, a norm's vectors and the operands.
        products: how many weights there are.
        text: of the epilogue, or of one for each product, with spaces in between.
        cut: of the kernel.
    """
    x, weights, operands = values[0], values[1 : 1 + products], values[1 + products :]
    outputs = [(dtype, (x.shape[0], n), (n, 1)) for dtype, n in _outputs(weights, text, cut)]
    of = *_kernel_arguments(x, weights, text, cut), x.device.index or 0
    numbers = (x.shape[0], *_row_strides(operands, text, cut))
    return HostCall(make_launcher.__module__, "make_launcher", of, outputs, numbers)


def launch(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], text: str, cut: Cut
) -> list[Tensor]:
    """The outputs, by one launch; a norm's vectors stand in front of the operands."""
    device = x.device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch(x, weights, operands, text, cut)
    fill, m = make_launcher(*_kernel_arguments(x, weights, text, cut), device), x.shape[0]
    outputs = [x.new_empty((m, n), dtype=dtype) for dtype, n in _outputs(weights, text, cut)]
    fill(m, *_row_strides(operands, text, cut), x, *weights, *operands, *outputs)
    return outputs


def _kernel_arguments(x: Tensor, weights: Sequence[Tensor], text: str, cut: Cut) -> tuple[Any, ...]:
    """What :func:`make_launcher` is given, but for the device."""
    first, dtype = weights[0], str(x.dtype).removeprefix("torch.")
    n = sum(_widths(cut)) or first.shape[1]
    return text, numbers_of(cut), dtype, (n, first.shape[0]), (x.stride(0), first.stride(1))


def _outputs(weights: Sequence[Tensor], text: str, cut: Cut) -> list[tuple[torch.dtype, Any]]:
    """Dtype and columns of each output."""
    widths = _widths(cut) or (weights[0].shape[1],)
    return [
        (getattr(torch, output.dtype), n)
        for n, epilogue in zip(widths, _epilogues(text), strict=True)
        for output in epilogue.outputs
    ]


def _row_strides(operands: Sequence[Tensor], text: str, cut: Cut) -> list[Any]:
    """How far rows of operands of kind ``full`` are apart."""
    kinds = zip(_joint_epilogue(text).operands, operands[_vectors(cut) :], strict=True)
    return [one.stride(0) for kind, one in kinds if kind.kind == "full"]


def _widths(cut: Cut) -> tuple[int, ...]:
    """Widths of products that have an epilogue each."""
    return cut.widths if isinstance(cut, RowKernel) else ()
