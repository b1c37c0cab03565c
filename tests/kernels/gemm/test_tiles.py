"""How the work of a GEMM region is cut: names, memory, who takes what."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, Output
from fusepass.kernels.gemm import tiles as gemm_tiles
from fusepass.kernels.gemm.tiles import FEW_ROWS, Tile, tiles

HALF = Epilogue(1, (), (), (Output("%0", "bfloat16"),))
PAIR = replace(HALF, products=2)
OF = {1: HALF, 2: PAIR}
SINGLE = Epilogue(1, (), (), (Output("%0", "bfloat16"), Output("%0", "float32")))


@pytest.mark.parametrize("products", [1, 2])
def test_tiles_have_names_of_their_own_and_fit(products: int) -> None:
    every = tiles(OF[products])
    assert len(set(every.values())) == len(every)
    assert all(name == tile.name for name, tile in every.items())
    fitting = tiles(OF[products], memory=100 << 10)  # as much as an RTX 4090 has
    assert fitting.keys() < every.keys()
    assert {tile.form for tile in fitting.values()} >= {"rows", "row"}


def test_tiles_take_their_rows_and_layouts() -> None:
    row, rows = Tile(1, 4, 64, 4, 2, form="row"), Tile(16, 16, 64, 4, 2, form="rows")
    grid = Tile(128, 128, 64, 4, 3)
    lies = {
        "(N, K)": [torch.empty(8, 16, dtype=torch.bfloat16).t()],
        "(K, N)": [torch.empty(16, 8, dtype=torch.bfloat16)],
    }
    assert row.takes(1, lies["(N, K)"], HALF)
    assert rows.takes(FEW_ROWS, lies["(N, K)"], HALF)
    assert grid.takes(1000, lies["(K, N)"], HALF)
    assert not row.takes(2, lies["(N, K)"], HALF)
    assert not rows.takes(FEW_ROWS + 1, lies["(N, K)"], HALF)
    assert not row.takes(1, lies["(K, N)"], HALF)
    symbolic = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()
    assert not Tile(128, 128, 64, 8, 4, form="rows").takes(symbolic, lies["(N, K)"], HALF)
    assert not rows.takes(symbolic, lies["(N, K)"], HALF)  # a thousand rows may come tomorrow


def test_tiles_that_need_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = [torch.empty(64, 64, dtype=torch.bfloat16).t()]
    some = [tile for tile in tiles(HALF).values() if tile.groups and tile.itemsize == 2]
    assert {tile.form for tile in some} == {"pingpong", "cooperative"}
    assert not any(tile.takes(1000, weight, HALF) for tile in some)
    assert not any(tile.takes(64, weight, HALF) for tile in some)
    monkeypatch.setattr(gemm_tiles, "on_hopper", lambda device: True)
    assert all(tile.takes(1000, weight, HALF) for tile in some if not tile.few_rows)
    assert not any(tile.takes(1000, weight, SINGLE) for tile in some)  # stored as two dtypes


def test_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_tiles, "on_hopper", lambda device: True)
    whole = Epilogue(1, (), (), (Output("%0", "float32"),))
    weight = torch.empty(64, 64)
    every = tiles(whole).values()
    for transposed in (True, False):
        given = [weight.t() if transposed else weight]
        forms = {tile.form for tile in every if tile.takes(1000, given, whole)}
        assert forms == ({"grid", "rows", "pingpong", "cooperative"} if transposed else {"grid"})
    assert not any(tile.takes(1000, [weight.t().half()], whole) for tile in every if tile.groups)
    bytes_in_flight = {tile.bytes_in_flight(1) for tile in every if tile.form == "grid"}
    assert bytes_in_flight == {
        tile.bytes_in_flight(1) for tile in tiles(HALF).values() if tile.form == "grid"
    }


def test_single_precision_has_as_much_in_flight() -> None:
    whole = Epilogue(1, (), (), (Output("%0", "float32"),))
    fitting = tiles(whole, 227 << 10).values()
    assert [t.stages for t in fitting if t.form == "pingpong" and t.itemsize == 4] == [5, 3]


def test_a_hopper_device_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in [name for name in sys.modules if name.startswith("triton.")]:
        monkeypatch.delitem(sys.modules, name)
    assert not gemm_tiles.on_hopper.__wrapped__(torch.device("cuda", 0))


def test_layouts_of_cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights as (N, K) of a half type, results of one, on Hopper; Gluon need not be there."""
    every = [tile for tile in tiles(HALF, 227 << 10).values() if tile.language == "cuda"]
    assert {tile.form for tile in every} == {"joint", "turns", "stream", "ring"}
    some = [tile for tile in every if not tile.few_rows]
    weight = torch.empty(64, 64, dtype=torch.bfloat16).t()
    assert not any(tile.takes(1000, [weight], HALF) for tile in some)
    monkeypatch.setattr(gemm_tiles, "is_hopper", lambda device: True)
    monkeypatch.setattr(gemm_tiles, "on_hopper", lambda device: False)
    symbolic = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()
    assert all(tile.takes(m, [weight], HALF) for tile in some for m in (1, 1000, symbolic))
    reduced = replace(HALF, outputs=(*HALF.outputs, Output("%0", "float32", "rows")))
    for weights, epilogue in (
        (weight.contiguous(), HALF),
        (weight.float(), HALF),
        (weight.expand(4, 64, 64), HALF),
        (weight, SINGLE),
        (weight, reduced),
    ):
        assert not any(tile.takes(1000, [weights], epilogue) for tile in some)


def test_last_steps_by_halves() -> None:
    """One product with nothing to fetch, in tiles of 128 columns; their kernels say so."""
    small = next(t for t in tiles(HALF).values() if t.form == "cooperative" and t.n == 128)
    assert small.tail(HALF) == 4
    assert small.tail(PAIR) == 0
    read = replace(HALF, operands=(EpilogueOperand("full", "bfloat16"),))
    assert small.tail(read) == 0
    for form, columns in (("cooperative", 256), ("pingpong", 128)):
        assert replace(small, form=form, n=columns).tail(HALF) == 0


def test_layouts_of_streaming_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are known to be so few, weights as (N, K) of a half type; results of any."""
    some = [tile for tile in tiles(HALF, 227 << 10).values() if tile.form == "stream"]
    assert {(tile.m, tile.n, tile.blocks) for tile in some} == set(
        itertools.product((8, 16, 32, 64, 96, 128), (32, 48, 56, 64), (1, 2, 4))
    )
    weight = torch.empty(64, 64, dtype=torch.bfloat16).t()
    assert not any(tile.takes(1, [weight], HALF) for tile in some)
    monkeypatch.setattr(gemm_tiles, "is_hopper", lambda device: True)
    monkeypatch.setattr(gemm_tiles, "on_hopper", lambda device: False)
    symbolic = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()
    reduced = replace(HALF, outputs=(*HALF.outputs, Output("%0", "float32", "rows")))
    double = replace(HALF, outputs=(Output("%0", "float64"),))
    for tile in some:
        assert all(tile.takes(m, [weight], of) for m in (1, tile.m) for of in (HALF, SINGLE))
        assert not any(tile.takes(m, [weight], HALF) for m in (tile.m + 1, symbolic))
        for weights, epilogue in (
            (weight.contiguous(), HALF),
            (weight.float(), HALF),
            (weight.expand(4, 64, 64), HALF),
            (weight, reduced),
            (weight, double),
        ):
            assert not tile.takes(1, [weights], epilogue)


@pytest.mark.parametrize("products", [1, 2])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_shared_memory_of_hopper(products: int, outputs: int) -> None:
    """An H100 has 227 KiB for a program; some tile has to fit whatever is stored."""
    epilogue = replace(OF[products], outputs=HALF.outputs * outputs)
    held = tiles(epilogue, 227 << 10)
    assert {"pingpong", "cooperative"} <= {tile.form for tile in held.values()}
    reduced = (*epilogue.outputs, Output("%0", "float32", "rows"))
    held = tiles(replace(epilogue, outputs=reduced), 227 << 10)
    assert {"pingpong", "cooperative"} <= {tile.form for tile in held.values()}


def test_partial_results() -> None:
    """One per tile of rows for each column; one per piece of columns for each row."""
    stored, rows = Output("%0", "float32"), Output("%0", "float32", "rows")
    columns = Output("%0", "float32", "columns", "max")
    whole, halved = Tile(128, 256, 64, 8, 3), Tile(128, 256, 64, 8, 3, split=True)
    shapes = [whole.shape_of(one, 1, 300, 520) for one in (stored, rows, columns)]
    assert shapes == [(300, 520), (3, 520), (3, 300)]
    assert halved.shape_of(columns, 1, 300, 520) == (6, 300)  # the last one is beyond all columns
    assert whole.shape_of(columns, 2, 300, 520) == (5, 300)  # both columns of a pair in one tile
    cooperative = replace(whole, form="cooperative")
    assert cooperative.shape_of(columns, 1, 300, 520) == (6, 300)
    assert cooperative.shape_of(columns, 2, 300, 520) == (5, 300)
    plain = replace(whole, form="rows")
    assert [plain.shape_of(columns, products, 300, 520) for products in (1, 2)] == [(3, 300)] * 2
    only = replace(HALF, outputs=(rows,))
    few = Tile(16, 16, 64, 4, 2, form="rows")
    assert not few.takes(8, [torch.empty(64, 64, dtype=torch.bfloat16).t()], only)
