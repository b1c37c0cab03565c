"""GELU far out, where its results are small and formulas of one logistic lose their digits."""

from __future__ import annotations

import pytest
import torch

from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.tiles import Tile, is_hopper, on_hopper, tiles
from tests.kernels.gemm.test_op import TAIL, exact_and_eager, far_out, parse, within

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tf32")]
KINDS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def one_of_each(shown: str) -> list[Tile]:
    """The first tile of each form."""
    epilogue = parse(TAIL.text().replace("bfloat16", shown))
    every = tiles(epilogue, 227 << 10).values()
    found = {one.form: one for one in reversed(every) if one.itemsize == KINDS[shown].itemsize}
    return list(found.values())


TILES = [
    pytest.param(shown, tile, id=f"{shown}-{tile.name}")
    for shown in KINDS
    for tile in one_of_each(shown)
]


@pytest.mark.parametrize(("shown", "tile"), TILES)
@pytest.mark.parametrize("mean", [-5.0, -4.0, -3.0, -2.0, 0.0])
def test_small_results(shown: str, tile: Tile, mean: float) -> None:
    device = torch.device("cuda")
    if tile.groups and not on_hopper(device):
        pytest.skip("needs a Hopper device, and Triton's language for it")
    if tile.cuda is not None and not is_hopper(device):
        pytest.skip("needs a Hopper device")
    epilogue = parse(TAIL.text().replace("bfloat16", shown))
    rows = tile.m if tile.few_rows else 300
    x, (weight,), (row,) = far_out(mean, rows, KINDS[shown], 256, 512)
    given = x.cuda(), [weight.t().cuda().t()], [row.cuda()]
    assert kernel.refuses(*given, epilogue) is None
    got = kernel.launch(*given, epilogue.text(), tile)
    assert within(got, *exact_and_eager(epilogue, *given))
