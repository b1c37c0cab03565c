"""What the tuner is asked to time for a GEMM region."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fusepass.kernels.gemm import tiles as gemm_tiles
from fusepass.kernels.gemm.tiles import tiles
from fusepass.patterns import gemm_region
from fusepass.patterns.gemm_region import candidates, usable
from fusepass.torch_private.inductor import kernel_call
from fusepass.tune import INDUCTOR
from tests.kernels.gemm.test_op import PLAIN, single
from tests.kernels.gemm.test_tiles import HALF

NAMED = {name: tile for name, tile in tiles(HALF, 227 << 10).items() if tile.few_rows}


@pytest.mark.parametrize("m", [1, 2, 64])
def test_nothing_counts_beside_what_is_timed(m: int) -> None:
    found = candidates(HALF, m, 4096, 4096, named=NAMED, every=True)
    assert any("stream" in one.name for one in found)
    assert {one.overhead_us for one in found} == {0.0}
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


@pytest.mark.parametrize("hopper", [True, False])
@pytest.mark.parametrize("lies", ["apart", "overlapping", "in batches"])
@pytest.mark.parametrize("rows", [16, 48, 1024])
def test_tf32_candidates_round_before_the_instruction(
    hopper: bool, lies: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Hopper by descriptors of the host's, or of few rows; elsewhere by any instructions."""
    monkeypatch.setattr(gemm_region, "shared_memory", lambda device: 227 << 10)
    monkeypatch.setattr(gemm_tiles, "is_hopper", lambda device: hopper)
    monkeypatch.setattr(gemm_tiles, "on_hopper", lambda device: hopper)
    monkeypatch.setattr(kernel_call, "kernel_calls_tested", lambda: True)
    with FakeTensorMode():
        x, w = torch.empty(rows, 512, device="cuda"), torch.empty(1024, 512, device="cuda").t()
        if lies == "overlapping":
            x = torch.empty(1 << 20, device="cuda").as_strided((rows, 512), (256, 1))
        if lies == "in batches":
            x, w = x.expand(3, rows, 512), w.expand(3, 512, 1024)
        found = usable(x, [w], [], single(PLAIN), rows).values()
    assert {tile.itemsize for tile in found} <= {4}
    by_instructions = set() if hopper else {"grid", "rows"}
    by_host = {"cooperative", "pingpong"} if hopper and lies == "apart" else set()
    assert {tile.form for tile in found if not tile.few_rows} == by_instructions | by_host
    assert any(tile.few_rows and tile.plain for tile in found) == (rows <= 64)
