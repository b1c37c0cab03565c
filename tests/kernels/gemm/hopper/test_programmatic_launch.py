"""Which launches may begin early: by small graphs as Inductor is given them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import fx
from torch._inductor import config as inductor_config

from fusepass.kernels.gemm import normed_gemms
from fusepass.kernels.gemm.hopper import programmatic_launch
from fusepass.kernels.gemm.hopper.programmatic_launch import (
    begins_early,
    lets_next_begin_early,
    saved_microseconds,
    with_early_launch,
)
from fusepass.kernels.gemm.hopper.row_source import RowKernel
from fusepass.kernels.gemm.hopper.stream_source import StreamKernel
from fusepass.kernels.gemm.hopper.tile_source import TileKernel
from fusepass.kernels.gemm.tiles import tiles
from tests.kernels.gemm.test_op import EPILOGUES

PRODUCT = torch.ops.fusepass.gemm_region.default
NORMED = normed_gemms.OPERATOR
PLAIN, SWIGLU = EPILOGUES["plain"], EPILOGUES["swiglu"]
VIEW, COPY = torch.ops.aten.view.default, torch.ops.aten.copy_.default


def tile_of(form: str, products: int = 1) -> str:
    every = tiles(PLAIN if products == 1 else SWIGLU).items()
    return next(name for name, tile in every if tile.form == form and tile.m <= 64)


ROW, RING, STREAM = (tile_of(form) for form in ("row", "ring", "stream"))
ROWS = "rows16x32x256w2s4"
MANY = next(name for name, tile in tiles(PLAIN).items() if tile.form == "joint")
PAIR = tile_of("row", 2)


class Graph:
    """A pair and the product behind it, and what a test puts beside them."""

    def __init__(self, first: str = PAIR, second: str = RING) -> None:
        self.graph = fx.Graph()
        self.x, self.gate, self.up, self.down = map(
            self.graph.placeholder, "x gate up down".split()
        )
        weights = [self.transposed(self.gate), self.transposed(self.up)]
        epilogue = SWIGLU
        if first not in tiles(SWIGLU):
            weights, epilogue = weights[:1], PLAIN
        self.pair = self.product(self.x, weights, epilogue.text(), first)
        self.second = second

    def call(self, target: Callable[..., object], *args: object) -> fx.Node:
        return self.graph.call_function(target, args)

    def product(self, x: object, weights: list[fx.Node], epilogue: str, tile: str) -> fx.Node:
        return self.call(PRODUCT, x, weights, [], epilogue, tile)

    def transposed(self, weight: fx.Node) -> fx.Node:
        return self.call(torch.ops.aten.permute.default, weight, [1, 0])

    def behind(self, x: object = None, weight: fx.Node | None = None) -> fx.Node:
        hidden = self.call(operator.getitem, self.pair, 0)
        weight = weight or self.transposed(self.down)
        return self.product(
            x or self.call(VIEW, hidden, [1, -1]), [weight], PLAIN.text(), self.second
        )


@pytest.fixture(autouse=True)
def new_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programmatic_launch.nvrtc, "begins_early", lambda: True)


@pytest.mark.parametrize("first", [PAIR, ROWS, RING, STREAM, tile_of("stream", 2)])
@pytest.mark.parametrize("second", [RING, STREAM])
def test_a_product_behind_one_of_few_rows(first: str, second: str) -> None:
    made = Graph(first, second)
    last = made.behind()
    assert (begins_early(made.pair), begins_early(last)) == (False, True)
    assert (lets_next_begin_early(made.pair), lets_next_begin_early(last)) == (True, False)
    cut = tiles(PLAIN)[second].cuda
    assert isinstance(cut, RowKernel | StreamKernel)
    assert with_early_launch(cut, last) == replace(cut, early=True)
    assert with_early_launch(cut, made.pair) == replace(cut, leads=True)


def test_behind_a_norm_with_its_products() -> None:
    made = Graph()
    one = PLAIN.text()
    for text, tile, may in (
        (f"norm {one}", ROW, True),
        (f"norm {one} {one}", ROW, False),  # whose kernel in Triton is another
        (f"norm {one}", RING, True),
        (f"norm {one} {one}", RING, True),
    ):
        made.pair = made.call(NORMED, made.x, [made.gate], [made.up], text, tile)
        assert begins_early(made.behind()) == may
        assert lets_next_begin_early(made.pair) == may


@pytest.mark.parametrize("tile", [RING, ROW])
def test_a_norm_with_its_products_does_not(tile: str) -> None:
    made = Graph(ROW)
    hidden = made.call(operator.getitem, made.pair, 0)
    weights = [made.transposed(made.down)]
    last = made.call(NORMED, hidden, weights, [made.gate], f"norm {PLAIN.text()}", tile)
    assert not begins_early(last)
    assert not lets_next_begin_early(made.pair)
    cut = tiles(PLAIN)[RING].cuda
    assert isinstance(cut, RowKernel)
    assert with_early_launch(cut, last) == cut


def test_a_chain() -> None:
    """One in the middle does both."""
    made = Graph(ROWS, STREAM)
    middle = made.behind()
    made.pair = middle
    last = made.behind()
    assert begins_early(middle)
    assert begins_early(last)
    cut = tiles(PLAIN)[STREAM].cuda
    assert isinstance(cut, StreamKernel)
    assert with_early_launch(cut, middle) == replace(cut, early=True, leads=True)


def test_other_kernels_do_not() -> None:
    """Those for many rows, and in Triton, which may let others begin but are launched as usual."""
    for second in (MANY, ROW, "reference"):
        made = Graph(PAIR, second)
        assert not begins_early(made.behind())
        assert not lets_next_begin_early(made.pair)
    for first in (MANY, "reference"):
        assert not begins_early(Graph(first).behind())
    shape = tiles(PLAIN)[MANY].cuda
    assert isinstance(shape, TileKernel)
    assert with_early_launch(shape, Graph().behind()) is shape


def test_x_has_to_be_a_kernels_result() -> None:
    """Whatever ran before the graph may still write the weights, if nothing in it came first."""
    made = Graph()
    assert not begins_early(made.behind(made.x))
    assert not begins_early(made.behind(made.call(torch.ops.aten.relu.default, made.x)))


def test_what_is_read_beside_the_product_does_not_count() -> None:
    made = Graph()
    hidden = made.call(operator.getitem, made.pair, 0)
    weight = made.transposed(made.down)
    args = made.x, [weight], [hidden], PLAIN.text(), RING
    assert not begins_early(made.call(PRODUCT, *args))
    assert not lets_next_begin_early(made.pair)


def writes(made: Graph) -> None:
    made.call(COPY, made.down, made.x)


def writes_a_view(made: Graph) -> None:
    view = made.call(torch.ops.aten.slice.Tensor, made.transposed(made.down), 0, 0, 8)
    made.call(COPY, view, made.x)


def is_read_by_a_kernel_of_the_users(made: Graph) -> None:
    of = torch.ops.higher_order.triton_kernel_wrapper_mutation
    made.graph.call_function(of, (), {"kwargs": {"p": made.down}})


def writes_a_part(made: Graph) -> None:
    parts = made.call(torch.ops.aten.split.Tensor, made.down, 8)
    made.call(COPY, made.call(operator.getitem, parts, 1), made.x)


@pytest.mark.parametrize(
    "how", [writes, writes_a_view, writes_a_part, is_read_by_a_kernel_of_the_users]
)
def test_weights_that_the_graph_may_write(how: Callable[[Graph], None]) -> None:
    made = Graph()
    last = made.behind()
    assert begins_early(last)
    how(made)
    assert not begins_early(last)
    assert not lets_next_begin_early(made.pair)


def test_weights_that_the_graph_makes() -> None:
    """Or may make: Inductor copies what it cannot reshape."""
    for how in (torch.ops.aten.mul.Tensor, torch.ops.aten.reshape.default):
        made = Graph()
        other = made.call(how, made.down, made.x)
        assert not begins_early(made.behind(weight=made.transposed(other)))


def test_parts_of_a_packed_weight() -> None:
    made = Graph()
    parts = made.call(torch.ops.aten.split.Tensor, made.down, 8)
    first, second = (made.call(operator.getitem, parts, i) for i in range(2))
    last = made.behind(weight=made.transposed(first))
    made.call(torch.ops.aten.mm.default, made.x, second)
    assert begins_early(last)


def test_beside_kernels_of_the_users() -> None:
    """They may begin before ours in front of them end, and need not wait for all in front."""
    made = Graph()
    last = made.behind()
    of = torch.ops.higher_order.triton_kernel_wrapper_mutation
    made.graph.call_function(of, (), {"kwargs": {"p": made.x}})
    assert not begins_early(last)
    assert not lets_next_begin_early(made.pair)


def test_where_inductors_own_kernels_overlap() -> None:
    made = Graph()
    last = made.behind()
    with inductor_config.patch({"triton.enable_pdl": True}):
        assert not begins_early(last)
        assert not lets_next_begin_early(made.pair)
    assert begins_early(last)


def test_saved_microseconds() -> None:
    """By kernels that can begin early: less of small weights, which take no longer to be read."""
    row, ring, stream = (tiles(PLAIN)[name] for name in (ROW, RING, STREAM))
    for one in (ring, stream):
        assert saved_microseconds(one, 120 << 20) == 2.0
        assert 0 < saved_microseconds(one, 3 << 20) < (3 << 20) / 5e6  # the time of reading them
    assert (
        saved_microseconds(row, 120 << 20)
        == saved_microseconds(tiles(PLAIN)[MANY], 120 << 20)
        == 0.0
    )


def test_weights_that_others_read() -> None:
    """Written is something else."""
    made = Graph()
    last = made.behind()
    made.call(COPY, made.x, made.call(torch.ops.aten.neg.default, made.x))
    made.graph.output((made.call(torch.ops.aten.mm.default, made.x, made.down), made.down))
    assert begins_early(last)


def test_an_old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programmatic_launch.nvrtc, "begins_early", lambda: False)
    made = Graph()
    assert not begins_early(made.behind())
    assert not lets_next_begin_early(made.pair)


def test_outside_of_inductor_nothing_overlaps() -> None:
    cut = RowKernel(1024, 8, 12)
    assert with_early_launch(cut) is cut
    assert not lets_next_begin_early()
