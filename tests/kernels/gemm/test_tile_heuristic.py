"""Which tiles are likely to be best for a product."""

from __future__ import annotations

import pytest
import torch

from fusepass.kernels.gemm import tiles as gemm_tiles
from fusepass.kernels.gemm.tile_heuristic import heuristic_tiles, search_space
from fusepass.kernels.gemm.tiles import FEW_ROWS, Tile, programs, tiles
from tests.kernels.gemm.test_tiles import HALF, OF, PAIR


@pytest.mark.parametrize("products", [1, 2])
@pytest.mark.parametrize("m", [1, 2, 16, 17, 32, 64])
def test_few_rows(products: int, m: int) -> None:
    weight = torch.empty(64, 32, dtype=torch.bfloat16).t()
    named = {
        name: tile for name, tile in tiles(OF[products]).items() if tile.takes(m, [weight], HALF)
    }
    for name in heuristic_tiles(named, products, m, 4096):
        tile = named[name]
        assert tile.form == ("row" if m == 1 else "rows")
        assert m <= tile.m <= max(16, 2 * (m - 1))
        count, most = programs(tile, products, m, 4096, 132)
        assert count == 4096 // tile.n <= most


@pytest.mark.parametrize("products", [1, 2])
def test_few_rows_on_hopper(products: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 33 to 64 rows TMA reads the weights, where the rows are known to be so few."""
    monkeypatch.setattr(gemm_tiles, "on_hopper", lambda device: True)
    weights = [torch.empty(64, 64, dtype=torch.bfloat16).t()] * products
    of = OF[products]
    symbolic = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()

    def of_rows(m: int) -> list[Tile]:
        named = {name: tile for name, tile in tiles(of).items() if tile.takes(m, weights, of)}
        return [named[name] for name in heuristic_tiles(named, products, m, 4096)]

    (first, *others) = of_rows(64)
    assert (first.form, first.m) == ("cooperative", 64)
    assert [tile.form for tile in others] == ["rows"]
    assert [tile.form for tile in of_rows(33)] == ["cooperative", "rows"]
    assert {tile.form for tile in of_rows(32)} == {"rows"}
    assert not any(tile.few_rows for tile in of_rows(65))
    assert not first.takes(65, weights, of)
    assert not first.takes(symbolic, weights, of)  # a thousand rows may come tomorrow


def of_a_hopper(products: int, m: int) -> dict[str, Tile]:
    """Those that take that many rows where there is enough shared memory."""
    weights, of = [torch.empty(64, 32, dtype=torch.bfloat16).t()] * products, OF[products]
    every = tiles(of, 227 << 10)
    return {name: tile for name, tile in every.items() if tile.takes(m, weights, of)}


def test_one_row_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for one row, and plain loads: for single products two tiles of them.

    A stream for large ones, which may be as fast where it is launched early.
    """
    monkeypatch.setattr(gemm_tiles, "is_hopper", lambda device: True)
    for products, k, steps in (
        (1, 4096, [2048, 1024, 2048]),
        (1, 2048, [2048, 1024, 512]),
        (1, 1024, [2048, 512, 512]),
        (2, 4096, [1024, 2048]),
        (2, 2048, [1024, 512]),
    ):
        named = of_a_hopper(products, 1)
        found = [named[name] for name in heuristic_tiles(named, products, 1, 4096, k)]
        assert [tile.form for tile in found] == ["ring"] + ["row"] * (len(steps) - 1)
        assert [tile.k for tile in found] == steps
        large = [named[name].form for name in heuristic_tiles(named, products, 1, 1 << 14, k)]
        streams = ["stream"] * (products == 1 and k > 1024)
        assert large == ["ring", *streams] + ["row"] * (len(steps) - 1)
        assert {tile.name for tile in found} <= set(search_space(named, 1))
        several = of_a_hopper(products, 2)
        assert not any(tile.form == "ring" for tile in several.values())


def test_one_row_too_long_for_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_tiles, "is_hopper", lambda device: True)
    named = {name: tile for name, tile in of_a_hopper(1, 1).items() if tile.form != "ring"}
    found = [named[name].form for name in heuristic_tiles(named, 1, 1, 4096, 40000)]
    assert found == ["stream", "row"]


@pytest.mark.parametrize(
    ("products", "k", "step"),
    [
        (1, 768, 512),
        (1, 1024, 512),
        (1, 2040, 512),
        (1, 2048, 1024),
        (2, 2048, 512),
        (2, 4096, 2048),
    ],
)
def test_one_row_takes_several_steps(products: int, k: int, step: int) -> None:
    """The first tile of several steps is taken, else a short one."""
    every = tiles(OF[products]).items()
    named = {name: t for name, t in every if t.form == "row" and t.itemsize == 2}
    (name, *_) = heuristic_tiles(named, products, 1, 4096, k)
    assert named[name].k == step


def without_hopper(products: int) -> dict[str, Tile]:
    return {name: t for name, t in tiles(OF[products]).items() if t.language == "triton"}


@pytest.mark.parametrize("m", [1, 16, 33, 64, 65, 1000])
def test_a_wide_search(m: int) -> None:
    weight = [torch.empty(64, 32, dtype=torch.bfloat16).t()]
    named = {name: tile for name, tile in tiles(HALF).items() if tile.takes(m, weight, HALF)}
    found = search_space(named, m)
    assert set(heuristic_tiles(named, 1, m, 4096)) <= set(found)
    few = m <= FEW_ROWS
    if few:
        assert all(named[name].few_rows and m <= named[name].m <= FEW_ROWS for name in found)
    else:
        assert found == list(named)
    transposed = {name: tile for name, tile in named.items() if not tile.plain}
    assert search_space(transposed, m) == list(transposed)  # of weights as (K, N)


@pytest.mark.parametrize(
    ("products", "m", "n", "columns", "form"),
    [
        (1, 2048, 1024, 128, "joint"),
        (1, 256, 14336, 224, "joint"),  # 128 tiles of 132
        (2, 256, 14336, 224, "joint"),
        (1, 384, 14336, 192, "joint"),
        (1, 8192, 4096, 192, "turns"),  # 11 rounds of 192 columns, or 16 of 128
        (2, 8192, 4096, 192, "turns"),
        (1, 4096, 4096, 128, "turns"),  # 6 rounds of 192 columns, or 8 of 128
        (2, 2048, 4096, 128, "turns"),
    ],
)
def test_the_tile_that_loads_least(products: int, m: int, n: int, columns: int, form: str) -> None:
    named = tiles(OF[products], 227 << 10)
    some = {name: tile for name, tile in named.items() if tile.language == "cuda"}
    (found,) = heuristic_tiles(some, products, m, n)
    assert (some[found].n, some[found].form) == (columns, form)
    assert some[found].candidate == f"cuda {found}"


def test_a_pair_of_256_rows_is_timed_both_ways() -> None:
    """Enough tiles for ping-pong, too few to hide all epilogues: 1.09 of cuBLAS, 0.93 in CUDA."""
    found = [tiles(PAIR)[name] for name in heuristic_tiles(tiles(PAIR, 227 << 10), 2, 256, 14336)]
    assert [(tile.form, tile.n) for tile in found] == [("pingpong", 128), ("joint", 224)]


@pytest.mark.parametrize(
    ("products", "m", "n", "k", "rows", "columns", "blocks", "other"),
    [
        (2, 65, 14336, 4096, 96, 56, 1, "cooperative"),
        (1, 96, 4096, 14336, 96, 64, 2, "cooperative"),
        (1, 97, 6144, 4096, 128, 48, 1, "cooperative"),
        (1, 128, 4096, 14336, 128, 64, 2, "cooperative"),
        (2, 80, 8192, 2048, 96, 64, 1, "cooperative"),
    ],
)
def test_streams_of_more_rows_stand_beside_tiles_for_many(
    products: int,
    m: int,
    n: int,
    k: int,
    rows: int,
    columns: int,
    blocks: int,
    other: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gemm_tiles, "is_hopper", lambda device: True)
    monkeypatch.setattr(gemm_tiles, "on_hopper", lambda device: True)
    named = of_a_hopper(products, m)
    first, second = (named[name] for name in heuristic_tiles(named, products, m, n, k))
    assert (first.form, first.m, first.n, first.blocks) == ("stream", rows, columns, blocks)
    assert (second.form, second.m) == (other, 128)
    wide = search_space(named, m)
    assert {named[name].m for name in wide if named[name].form == "stream"} == {rows}
    assert {name for name, tile in named.items() if not tile.few_rows} <= set(wide)
    (alone,) = heuristic_tiles({first.name: first}, products, m, n, k)  # where a torch has no other
    assert alone == first.name


@pytest.mark.parametrize(
    ("products", "m", "n", "k", "other"),
    [
        (2, 2048, 4096, 520, ("joint", 256)),
        (1, 8192, 4096, 1000, ("joint", 256)),
        (2, 2048, 4096, 512, ("turns", 128)),
    ],
)
def test_rows_that_begin_anywhere_in_a_line(
    products: int, m: int, n: int, k: int, other: tuple[str, int]
) -> None:
    """Loads count twice there, so the tile that loads least is timed beside ping-pong."""
    named = tiles(OF[products], 227 << 10)
    first, second = (named[name] for name in heuristic_tiles(named, products, m, n, k))
    assert first.form == "pingpong"
    assert (second.form, second.n) == other


def test_many_rows() -> None:
    named = without_hopper(2)
    assert heuristic_tiles(named, 2, 8192, 4096) == ["128x256x64w8s4"]
    assert heuristic_tiles(named, 2, 128, 4096) == ["64x128x64w4s5"]
    count, most = programs(named["128x256x64w8s4"], 2, 8192, 4096, 132)
    assert (count, most) == (64 * 32, 132)


@pytest.mark.parametrize(
    ("m", "n", "form"),
    [(8192, 4096, "pingpong"), (256, 14336, "cooperative"), (2048, 1024, "cooperative")],
)
def test_many_rows_on_hopper(m: int, n: int, form: str) -> None:
    """Where there are tiles enough to hide epilogues behind, else one tile per multiprocessor."""
    first, *others = heuristic_tiles(tiles(HALF), 1, m, n)
    tile = tiles(HALF)[first]
    assert tile.form == form
    assert [tiles(HALF)[other].language for other in others] == ["cuda"]
    without = {name: tile for name, tile in tiles(HALF).items() if tile.language != "cuda"}
    assert len(heuristic_tiles(without, 1, m, n)) == (
        1 if form == "pingpong" else 2
    )  # of (K, N), say
    count, most = programs(tile, 1, m, n, 132)
    assert most == 132
    assert count >= (2 * most if form == "pingpong" else 0.8 * most)


@pytest.mark.parametrize(
    ("products", "m", "n", "k", "rows", "columns", "blocks"),
    [
        (2, 8, 14336, 4096, 8, 56, 1),  # two tiles for each of nearly all
        (2, 64, 14336, 4096, 64, 56, 1),
        (1, 16, 4096, 14336, 16, 64, 2),
        (1, 64, 4096, 14336, 64, 64, 2),
        (1, 9, 6144, 4096, 16, 48, 1),  # 128 blocks; of 64 columns 96, or twice as many
        (1, 33, 6144, 4096, 64, 48, 1),
        (1, 17, 1024, 4096, 32, 48, 4),
        (1, 16, 2048, 8192, 16, 32, 2),  # of four blocks that share K there is room for 30
        (2, 16, 3072, 1024, 16, 32, 1),  # exchanging would take longer than what it saves
        (1, 8, 768, 768, 8, 32, 1),
    ],
)
def test_streams_by_what_a_multiprocessor_loads(
    products: int,
    m: int,
    n: int,
    k: int,
    rows: int,
    columns: int,
    blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The smallest that holds the rows, beside one of another kind."""
    monkeypatch.setattr(gemm_tiles, "is_hopper", lambda device: True)
    monkeypatch.setattr(gemm_tiles, "on_hopper", lambda device: False)
    named = of_a_hopper(products, m)
    first, second = (named[name] for name in heuristic_tiles(named, products, m, n, k))
    assert (first.form, first.m, first.n, first.blocks) == ("stream", rows, columns, blocks)
    assert second.form == "rows"
    wide = search_space(named, m)
    assert {named[name].m for name in wide if named[name].form == "stream"} == {rows}
    assert {first.name, second.name} <= set(wide)


def test_wide_tiles_in_turns_read_no_matrices() -> None:
    """With a residual 8192 x 1024 -> 4096 took 163 us by 192 columns, 111 by Gluon's ping-pong."""
    named = {name: t for name, t in tiles(HALF, 227 << 10).items() if t.language == "cuda"}
    (wide,) = heuristic_tiles(named, 1, 8192, 4096)
    (narrow,) = heuristic_tiles(named, 1, 8192, 4096, matrices=True)
    assert (named[wide].n, named[narrow].n) == (192, 128)
