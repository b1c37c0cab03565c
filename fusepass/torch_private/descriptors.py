"""TMA descriptors of Triton's Gluon, made by the host. Run with Triton 3.6 (torch 2.11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Matrix:
    """What a descriptor is of.

    Attributes:
        rows, columns, stride: names of the kernel's parameters that say how many there are, and how
            far apart rows begin, in elements.
        tile: rows and columns that one copy takes.
    """

    rows: str
    columns: str
    stride: str
    tile: tuple[int, int]


def descriptor(given: Mapping[str, Any], name: str, of: Matrix) -> Any:
    """Triton's descriptor of a matrix among a kernel's arguments.

    Args:
        given: the arguments by name, with a tensor under ``name``.
        name: which.
        of: its kind.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    matrix, tile = given[name], list(of.tile)
    sizes, strides = [given[of.rows], given[of.columns]], [given[of.stride], 1]
    return TensorDescriptor(matrix, sizes, strides, tile, layout_of(matrix.dtype, of))


def layout_of(dtype: torch.dtype, of: Matrix) -> Any:
    """How a tile lies in shared memory."""
    from triton.experimental.gluon import language as gl

    element = getattr(gl, str(dtype).removeprefix("torch."))
    return gl.NVMMASharedLayout.get_default_for(list(of.tile), element)
