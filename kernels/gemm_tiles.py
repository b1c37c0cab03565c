"""How the work of a GEMM region is cut, and which cuts there are."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FEW_ROWS = 64  # up to these the time is that of reading the weights
_EVERY = 1 << 31  # programs: as many as there is work for


@dataclass(frozen=True)
class Tile:
    """How the work is cut.

    Attributes:
        m, n, k: of a tile of the product; of a pair, ``n`` of a ``grid`` counts both's columns.
        warps: of a program.
        stages: tiles of operands in flight.
        programs: on each multiprocessor; two overlap one's epilogue with the other's products.
        split: whether the epilogue takes a tile in two halves.
        group: rows of tiles that go together.
        form: of the kernel: ``grid`` of ``gemm_source.py``, ``rows`` or ``row`` of
            ``skinny_source.py``.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    programs: int = 1
    split: bool = False
    group: int = 8
    form: str = "grid"

    @property
    def name(self) -> str:
        """Short, for tables and reports: ``128x256x64w8s4``, ``rows16x64x128w4s3``."""
        more = f"c{self.programs}" * (self.programs > 1) + "h" * self.split
        kind = "" if self.form == "grid" else self.form
        return f"{kind}{self.m}x{self.n}x{self.k}w{self.warps}s{self.stages}{more}"

    def bytes_in_flight(self, products: int) -> int:
        """Shared memory for the operands, in bytes."""
        weights = self.n if self.form == "grid" else self.n * products
        return self.stages * (self.m + weights) * self.k * 2

    def takes(self, m: Any, weights: Sequence[Tensor]) -> bool:
        """Whether it is meant for that many rows, and can read the weights as they lie."""
        if self.form == "grid":
            return True
        known = isinstance(m, int) and (m == 1 if self.form == "row" else m <= FEW_ROWS)
        return known and all(weight.stride(0) == 1 for weight in weights)


# Best on an H200 at the shapes of BASELINES.md §2 and §3, by tests/perf/results.
_PAIR = (
    Tile(128, 256, 64, 8, 4),
    Tile(64, 256, 64, 4, 4),
    Tile(64, 128, 64, 4, 5),
)
_ONE = (
    Tile(128, 128, 64, 4, 3, programs=2, split=True),
    Tile(128, 256, 64, 8, 3, split=True),
    Tile(128, 128, 64, 8, 4),
)
_ROW_PAIR = (
    Tile(1, 4, 1024, 4, 3, form="row"),
    Tile(1, 2, 2048, 4, 3, form="row"),
)
_ROW_ONE = (
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
    Tile(16, 16, 512, 2, 3, form="rows"),
    Tile(16, 32, 256, 2, 4, form="rows"),
    Tile(32, 32, 256, 4, 4, form="rows"),
    Tile(64, 32, 128, 4, 6, form="rows"),
    Tile(64, 32, 256, 4, 4, form="rows"),
)


def tiles(products: int, memory: int = 1 << 30) -> dict[str, Tile]:
    """The tiles there are, by name.

    Args:
        products: 1 or 2.
        memory: shared memory in bytes that one program may have; larger tiles are left out.
    """
    every = (*_ONE, *_ROW_ONE, *_ROWS_ONE) if products == 1 else (*_PAIR, *_ROW_PAIR, *_ROWS_PAIR)
    needed = {tile: tile.bytes_in_flight(products) * tile.programs for tile in every}
    return {tile.name: tile for tile in every if needed[tile] <= memory}


def likely(named: Mapping[str, Tile], products: int, m: int, n: int) -> list[str]:
    """The tiles of those that should be best for a product, at most two.

    Of many rows the largest tile of which there are enough to go round; of few the smallest that
    hold all rows.

    Args:
        named: the tiles that take it, by name.
        products: 1 or 2.
        m: rows of a product.
        n: its columns.
    """
    few = {name: tile for name, tile in named.items() if tile.form != "grid" and m <= tile.m}
    if few:
        least = min(tile.m for tile in few.values())
        return [name for name, tile in few.items() if tile.m == least][:2]
    grid = {name: tile for name, tile in named.items() if tile.form == "grid"}
    for name, tile in grid.items():
        if (-(-m // tile.m)) * -(-n * products // tile.n) >= _ENOUGH:
            return [name]
    return list(grid)[-1:]


_ENOUGH = 100  # tiles: fewer leave too many multiprocessors idle


def programs(tile: Tile, products: int, m: Any, n: Any, multiprocessors: int) -> tuple[Any, int]:
    """Tiles of the whole product, and programs that at most run at a time."""
    if tile.form != "grid":
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
def multiprocessors(device: torch.device) -> int:
    """Of a device; 1 where there are none."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
