"""What the tuner is asked to time for a GEMM region."""

from __future__ import annotations

import pytest

from fusepass.kernels.gemm_tiles import tiles
from fusepass.patterns.gemm_candidates import candidates
from fusepass.tune import INDUCTOR
from tests.kernels.test_gemm_tiles import HALF

NAMED = {name: tile for name, tile in tiles(HALF, 227 << 10).items() if tile.few_rows}


@pytest.mark.parametrize("m", [1, 2, 64])
def test_nothing_counts_beside_what_is_timed(m: int) -> None:
    found = candidates(HALF, m, 4096, 4096, named=NAMED, every=True)
    assert any("stream" in one.name for one in found)
    assert {one.besides for one in found} == {0.0}
    assert found[0].name == INDUCTOR


def test_what_was_best_before_is_timed_again() -> None:
    """Also if it is not likely to be best; a name that is no tile's is not asked about."""
    few = [one.name for one in candidates(HALF, 16, 4096, 4096, named=NAMED)]
    known = next(tile.candidate for tile in NAMED.values() if tile.candidate not in few)
    again = candidates(HALF, 16, 4096, 4096, named=NAMED, known=known)
    assert [one.name for one in again] == [*few, known]
    other = candidates(HALF, 16, 4096, 4096, named=NAMED, known="triton 7x7x7w7s7")
    assert [one.name for one in other] == few
    assert sum(one.estimate is not None for one in again) == 2  # Inductor's and the likeliest
