"""Launch the kernel for pooling with little host overhead."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import parse
from fusepass.kernels.codegen import cubin_cache
from fusepass.kernels.pointwise.pool_source import (
    NAME,
    THREADS,
    PoolPatch,
    PoolShape,
    patches,
    pool_source,
)
from fusepass.torch_private.cuda import nvrtc

_NARROW = PoolPatch(1, 1, 1)  # reads and writes one number at a time


class _Table(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint64), ("y", ctypes.c_uint64), ("planes", ctypes.c_uint32))


@functools.lru_cache(maxsize=512)
def _compiled(shape: PoolShape, before: str, behind: str, patch: PoolPatch, device: int) -> Any:
    with torch.cuda.device(device):
        return cubin_cache.load_or_compile(
            pool_source(shape, parse(before), parse(behind), patch), NAME
        )


def prepare(shape: PoolShape, before: str, behind: str, patch: str, device: torch.device) -> None:
    """Compile what calls of this kind will launch.

    Raises:
        Exception: there is no NVRTC, or it refuses.
    """
    _compiled(shape, before, behind, patch_named(patch), device.index or 0)


@functools.lru_cache(maxsize=512)
def make_launcher(
    shape: tuple[Any, ...], before: str, behind: str, patch: str, device: int
) -> Callable[..., None]:
    """What computes a call, with ``device`` the current one.

    It is called with the leading sizes of the image, the image, and the result to be filled; only
    the addresses of both are asked for.

    Args:
        shape: the attributes of a :class:`fusepass.kernels.pointwise.pool_source.PoolShape`, in
            order.
        before: text of what is done to each number of the image.
        behind: likewise, of the result.
        patch: its name.
        device: its number.
    """
    known, wanted = PoolShape(*shape), patch_named(patch)
    unaligned = replace(wanted, vector=1)
    kernels: dict[PoolPatch, Any] = {}  # compiled by the first call
    sizes = [getattr(torch, dtype).itemsize for dtype in (known.given, known.made)]
    reads, writes = sizes[0] * wanted.vector - 1, sizes[1] * wanted.across - 1

    def fill(*given: Any) -> None:
        *leading, x, y = given
        planes = math.prod(leading)
        source, target = Tensor.data_ptr(x), Tensor.data_ptr(y)
        used = wanted
        if target & writes:
            used = _NARROW
        elif source & reads:
            used = unaligned
        kernel = kernels.get(used)
        if kernel is None:
            kernel = kernels[used] = _compiled(known, before, behind, used, device)
        threads = planes * math.prod(patches(known, used))
        if threads:
            table = _Table(source, target, planes)
            nvrtc.launch(kernel, -(-threads // THREADS), THREADS, table, device)

    return fill


@functools.lru_cache(maxsize=64)
def patch_named(name: str) -> PoolPatch:
    """The patch that a candidate's name says."""
    return PoolPatch(*map(int, name.removeprefix("cuda ").split("x")))
