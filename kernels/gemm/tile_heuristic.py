"""Which tiles of a GEMM region are likely to be best: those that are worth timing."""

from __future__ import annotations

from collections.abc import Mapping

from fusepass.kernels.gemm.hopper.stream_source import StreamKernel
from fusepass.kernels.gemm.tiles import FEW_ROWS, Tile, programs


def search_space(named: Mapping[str, Tile], m: int) -> list[str]:
    """The tiles worth timing where a search may take its time: of few rows, those for few rows.

    Others took one and a half to three times as long up to 64 rows, and each has to be compiled;
    of more rows that stream, streams are timed beside all others.

    Args:
        named: the tiles that take it, by name.
        m: rows of a product.
    """
    few = {name: tile for name, tile in named.items() if tile.few_rows and m <= tile.m}
    least = min((tile.m for tile in few.values() if tile.form == "stream"), default=0)
    found = [n for n, t in few.items() if t.form != "stream" or t.m == least]
    return found if m <= FEW_ROWS and found else found + _many_rows_tiles(named)


def heuristic_tiles(
    named: Mapping[str, Tile],
    products: int,
    m: int,
    n: int,
    k: int = 4096,
    processors: int = 132,
    *,
    matrices: bool = False,
) -> list[str]:
    """The tiles that should be best for a product, at most two; four for one row.

    Many rows take the tile whose epilogues run behind other products, if there are enough tiles;
    else the largest that gives each multiprocessor one. On Hopper that is one in Gluon and one in
    CUDA C++, where both take it: on an H200 Gluon's ping-pong is up to 2 % faster with GELU
    (erf) and up to 6 % slower with other functions. Compiling a kernel
    takes longer than timing it. Where rows begin anywhere in a line of L2, so that pieces of 128
    bytes lie in two of them, the one in CUDA C++ is the tile that loads least: there a tile
    of 128 x 256 took 0.8 of the time of ping-pong.

    Args:
        named: the tiles that take it, by name.
        products: 1 or 2.
        m: rows of a product.
        n: its columns.
        k: what is summed over.
        processors: multiprocessors of the device.
        matrices: whether the epilogue reads any.
    """
    few = {name: tile for name, tile in named.items() if tile.few_rows and m <= tile.m}
    found = _few_rows_tiles(few, products, n, k, processors)
    if len(found) > 1 or (found and m <= FEW_ROWS):
        return found
    many = {name: named[name] for name in _many_rows_tiles(named)}
    if matrices:  # with a residual they took 1.2 to 1.6 times as long as Gluon's ping-pong
        many = {name: tile for name, tile in many.items() if tile.form != "turns" or tile.n <= 128}
    ragged = k % _LINE > 0
    for kind in ("gluon", "cuda", "triton"):
        some = {name: t for name, t in many.items() if t.language == kind}
        if kind == "cuda":
            found += _fewest_loads(some, products, m, n, processors, hidden=not ragged)
        else:
            suited = [name for name, t in some.items() if _fills_device(t, products, m, n)]
            found += (suited or list(some)[-1:])[:1]
        hidden = not ragged and any(_hides_epilogue(named[name], products, m, n) for name in found)
        if len(found) > 1 or (hidden and kind != "gluon"):
            break
    return found


def _few_rows_tiles(
    few: Mapping[str, Tile], products: int, n: int, k: int, processors: int
) -> list[str]:
    """The smallest tiles that hold all of few rows; on Hopper one that streams and one other.

    One row takes the kernel for one row, and plain loads: two tiles of those for one product, and a
    stream if it is large; one for a pair. The best of about 70 tiles is then at most 7 % faster for
    one product, and no faster for pairs (``tests/perf/one_row_tiles.py``, 20 layers, two cards).
    """
    rings = [name for name, tile in few.items() if tile.form == "ring"]
    streamed = not rings or (products == 1 and n * k >= _LARGE)
    found = rings + (_stream(few, products, n, k, processors) if streamed else [])
    others = {name: tile for name, tile in few.items() if tile.form not in ("stream", "ring")}
    least = min((tile.m for tile in others.values()), default=0)
    fitting = [name for name, tile in others.items() if tile.m == least]
    if least == 1:  # of a K that is no two steps the shortest step comes first
        fitting.sort(key=lambda name: others[name].k if 2 * others[name].k > k else 0)
    return found + fitting[: 3 - products if rings else 2 - len(found)]


def _many_rows_tiles(named: Mapping[str, Tile]) -> list[str]:
    return [name for name, tile in named.items() if not tile.few_rows]


def _stream(few: Mapping[str, Tile], products: int, n: int, k: int, processors: int) -> list[str]:
    """The smallest tile that streams for which a multiprocessor loads least.

    What blocks add up for each other takes about as long as loading so much more.
    """

    def loads(name: str) -> tuple[int, int, int]:
        tile, shape = few[name], few[name].cuda
        assert isinstance(shape, StreamKernel)
        turns = -(-(-(-n // tile.n) * tile.blocks) // shape.most(processors))
        each = turns * (products * tile.n + tile.m) * 2 * k // tile.blocks
        return tile.m, each + _EXCHANGED * (tile.blocks > 1), tile.blocks

    streams = (name for name, tile in few.items() if tile.form == "stream")
    return sorted(streams, key=loads)[:1]


_EXCHANGED = 96 << 10  # bytes
_LARGE = 24 << 20  # numbers of a weight; of less a stream takes up to twice as long for one row
_LINE = 64  # numbers of a half type in a line of L2


def _fewest_loads(
    some: Mapping[str, Tile], products: int, m: int, n: int, processors: int, *, hidden: bool
) -> list[str]:
    """The tile in CUDA C++ for which a multiprocessor loads least: loads take the time.

    If there are enough, and loads are not what counts, the one whose epilogues are ``hidden``: they
    run behind other products.
    """
    turns = (name for name, t in some.items() if t.form == "turns" and hidden)
    behind = [name for name in turns if _fills_device(some[name], products, m, n)]

    def rounds(name: str) -> int:
        count, most = programs(some[name], products, m, n, processors)
        return int(-(-count // most))

    def loads(name: str) -> int:
        return rounds(name) * (some[name].m + some[name].n)

    def multiplies(name: str) -> int:  # what is loaded of x counts little beside the products
        return rounds(name) * (some[name].m // 8 + some[name].n)

    joint = [name for name, tile in some.items() if tile.form == "joint"]
    return sorted(behind, key=multiplies)[:1] or sorted(joint, key=loads)[:1]


def _hides_epilogue(tile: Tile, products: int, m: int, n: int) -> bool:
    """Whether nearly all of a tile's epilogues run behind other products."""
    return tile.groups == 2 and _count(tile, products, m, n) >= 6 * _ENOUGH


def _count(tile: Tile, products: int, m: int, n: int) -> int:
    """Tiles of the whole product, by the columns of all weights."""
    return -(-m // tile.m) * -(-n * products // tile.n)


def _fills_device(tile: Tile, products: int, m: int, n: int) -> bool:
    """Whether a tile has neither too few of its kind to go round, nor better ones beside it.

    An epilogue needs further tiles to hide behind; and where there are hardly as many tiles as
    multiprocessors, making TMA's descriptors costs more than what they save.
    """
    count = _count(tile, products, m, n)
    most = 2 * _ENOUGH if tile.plain else count
    least = {"pingpong": 3, "turns": 6}.get(tile.form, 1) * _ENOUGH
    return least <= count <= most


_ENOUGH = 100  # for about as many multiprocessors
