"""How the pointwise kernel that stands for Inductor's cuts its matrices."""

from __future__ import annotations

import pytest

from fusepass.kernels.gemm.baseline import _cut


@pytest.mark.parametrize("n", [0, 1, 33, 64, 128, 511, 512, 513, 8192])
def test_short_rows_come_together(n: int) -> None:
    """A piece of 512 would be mostly idle with 64 columns, and Inductor would look slow."""
    cut = _cut(n)
    assert cut.m * cut.n == _cut(4096).m * _cut(4096).n
    assert cut.n == 512 or n <= cut.n < 2 * n
