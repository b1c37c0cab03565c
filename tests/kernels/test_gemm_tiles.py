"""How the work of a GEMM region is cut: names, memory, which tile is likely to be best."""

from __future__ import annotations

import pytest
import torch

from fusepass.kernels.gemm_tiles import FEW_ROWS, Tile, likely, programs, tiles


@pytest.mark.parametrize("products", [1, 2])
def test_tiles_have_names_of_their_own_and_fit(products: int) -> None:
    every = tiles(products)
    assert len(set(every.values())) == len(every)
    assert all(name == tile.name for name, tile in every.items())
    fitting = tiles(products, 100 << 10)  # as much as an RTX 4090 has
    assert fitting.keys() < every.keys()
    assert {tile.form for tile in fitting.values()} >= {"rows", "row"}


@pytest.mark.parametrize("products", [1, 2])
@pytest.mark.parametrize("m", [1, 2, 16, 17, 32, 64])
def test_few_rows(products: int, m: int) -> None:
    weight = torch.empty(64, 32).t()
    named = {name: tile for name, tile in tiles(products).items() if tile.takes(m, [weight])}
    for name in likely(named, products, m, 4096):
        tile = named[name]
        assert tile.form == ("row" if m == 1 else "rows")
        assert m <= tile.m <= max(16, 2 * (m - 1))
        count, most = programs(tile, products, m, 4096, 132)
        assert count == 4096 // tile.n <= most


def test_who_takes_what() -> None:
    row, rows = Tile(1, 4, 64, 4, 2, form="row"), Tile(16, 16, 64, 4, 2, form="rows")
    grid = Tile(128, 128, 64, 4, 3)
    lies = {"(N, K)": [torch.empty(8, 16).t()], "(K, N)": [torch.empty(16, 8)]}
    assert row.takes(1, lies["(N, K)"])
    assert rows.takes(FEW_ROWS, lies["(N, K)"])
    assert grid.takes(1000, lies["(K, N)"])
    assert not row.takes(2, lies["(N, K)"])
    assert not rows.takes(FEW_ROWS + 1, lies["(N, K)"])
    assert not row.takes(1, lies["(K, N)"])
    symbolic = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()
    assert not rows.takes(symbolic, lies["(N, K)"])  # a thousand rows may come tomorrow


def test_many_rows() -> None:
    named = tiles(2)
    assert likely(named, 2, 8192, 4096) == ["128x256x64w8s4"]
    assert likely(named, 2, 128, 4096) == ["64x128x64w4s5"]
    count, most = programs(named["128x256x64w8s4"], 2, 8192, 4096, 132)
    assert (count, most) == (64 * 32, 132)
