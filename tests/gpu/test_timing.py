"""Times of candidates on the device do not hold what the host takes to launch them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from fusepass.tune.timing import time_on_device

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone]


def test_a_slow_host_and_many_candidates() -> None:
    """More launches than a stream's queue holds, each of which takes the host 300 µs."""
    x = torch.randn(64, device="cuda")

    def slow() -> object:
        until = time.perf_counter() + 300e-6
        while time.perf_counter() < until:
            pass
        return x + 1

    calls: dict[str, Callable[[], object]] = {f"slow {n}": slow for n in range(20)}
    medians = time_on_device(calls | {"quick": lambda: x + 1}, x.device, 0.5).medians()
    assert max(medians.values()) < 30
