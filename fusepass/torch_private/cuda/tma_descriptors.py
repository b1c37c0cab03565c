"""Make TMA descriptors for Gluon kernels on the host. Run with Triton 3.6 (torch 2.11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

_FP32, TF32 = 7, 11
"""CUtensorMapDataType of fp32: copied as it is, or rounded to TF32."""


@dataclass(frozen=True)
class Matrix:
    """What a descriptor is of.

    Attributes:
        rows, columns, stride: names of the kernel's parameters that say how many there are, and how
            far apart rows begin, in elements.
        tile: rows and columns that one copy takes.
        multiplied: whether tensor cores multiply it; then of fp32 TMA rounds to TF32, as a library
            does, where they themselves would drop bits.
    """

    rows: str
    columns: str
    stride: str
    tile: tuple[int, int]
    multiplied: bool


def descriptor(given: Mapping[str, Any], name: str, of: Matrix) -> Any:
    """Triton's descriptor of a matrix among a kernel's arguments."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    matrix, tile = given[name], list(of.tile)
    sizes, strides = [given[of.rows], given[of.columns]], [given[of.stride], 1]
    return TensorDescriptor(matrix, sizes, strides, tile, layout_of(matrix.dtype, of))


def layout_of(dtype: torch.dtype, of: Matrix) -> Any:
    """How a tile lies in shared memory."""
    from triton.experimental.gluon import language as gl

    element = getattr(gl, str(dtype).removeprefix("torch."))
    return gl.NVMMASharedLayout.get_default_for(list(of.tile), element)


def round_to_tf32(kernel: Any, matrices: Mapping[str, Matrix]) -> bool:
    """Have descriptors that Triton makes for a compiled kernel round what is multiplied, if fp32.

    Triton 3.6 has no word for it.

    Returns:
        Whether they did not until now.
    """
    names = [name for name in kernel.src.fn.arg_names if name in matrices]
    changed = False
    for name, meta in zip(names, kernel.metadata.tensordesc_meta, strict=True):
        if matrices[name].multiplied and meta["elem_type"] == _FP32:
            meta["elem_type"] = TF32  # the launcher reads it with each launch
            changed = True
    return changed
