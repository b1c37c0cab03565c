"""How the programs of a kernel are divided among batches."""

from __future__ import annotations

import pytest
import torch

from fusepass.kernels.gemm.batches import programs_each

SMS = 132


@pytest.mark.parametrize("batches", [1, 2, 3, 8, 16, 64, 70, 100, 131, 132, 133, 200, 1000])
@pytest.mark.parametrize("tiles", [1, 2, 5, 16, 131, 132, 133, 512, 3000])
def test_no_round_is_nearly_empty(batches: int, tiles: int) -> None:
    each = programs_each(tiles, SMS, batches)
    assert 1 <= each <= tiles
    rounds = -(-each * batches // SMS) * -(-tiles // each)
    best = -(-tiles * batches // SMS)
    assert rounds <= 2 * best
    if batches * tiles >= 8 * SMS and batches in (1, 2, 8, 16, 64):
        assert rounds <= 1.15 * best


def test_one_product_gets_the_whole_device() -> None:
    assert programs_each(500, SMS, 1) == SMS
    assert programs_each(100, SMS, 1) == 100
    assert programs_each(0, SMS, 3) == 0


def test_sizes_that_vary() -> None:
    tiles = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()
    each = programs_each(tiles, SMS, 8)
    assert isinstance(each, torch.SymInt)
    assert "16" in str(each)


def test_few_batches_at_once() -> None:
    assert programs_each(44, SMS, 64) == 22  # six batches on the device
    assert programs_each(512, SMS, 8) == 16  # all eight
