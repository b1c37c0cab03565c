"""1,000 random loops with faults: nothing lost, nothing out of order, nothing left behind."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from tests.conftest import SEED

from .fake_cuda import FakeCuda, fake_cuda
from .runs import ENDS, run

__all__ = ["fake_cuda"]

RUNS = 1000
PARTS = 4  # so that xdist can share them out


@pytest.mark.parametrize("part", range(PARTS))
def test_random_runs_with_faults(part: int, fake_cuda: FakeCuda) -> None:
    ends: Counter[str] = Counter()
    for number in range(RUNS // PARTS):
        seed = (SEED * PARTS + part) * RUNS + number
        try:
            ends[run(seed, fake_cuda)] += 1
        except BaseException as error:
            error.add_note(f"run({seed}, …) in tests/prefetching/runs.py")
            raise
        gc.collect(0)
        left = fake_cuda.left()
        if left != (0, 0):  # an exception's frames may hold some
            gc.collect()
            assert fake_cuda.left() == (0, 0), f"run({seed}, …)"
    assert set(ends) == set(ENDS)
