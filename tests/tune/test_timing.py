"""How rounds are queued: as long as the host needs for them, and again where it took longer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from fusepass.tune import timing


class Device:
    """Stands in for a device: writes down what was queued, and says what the host took."""

    def __init__(self, host: list[float]) -> None:
        self.host = host
        self.queued: list[tuple[int, float]] = []
        self.flushed: set[str] = set()

    def run(
        self, calls: Mapping[str, Callable[[], object]], flush: Any, count: int, host: float
    ) -> tuple[dict[str, list[float]], float]:
        self.flushed.add(flush.__name__)
        took = self.host[min(len(self.queued), len(self.host) - 1)]
        self.queued.append((count, host))
        return {name: [took] * count for name in calls}, took


def timed(
    device: Device, monkeypatch: pytest.MonkeyPatch, calls: int = 2, after_reads: bool = False
) -> timing.Samples:
    monkeypatch.setattr(timing, "_run_rounds", device.run)
    monkeypatch.setattr(timing, "_l2_bytes", lambda device: 8)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    names = {str(n): lambda: None for n in range(calls)}
    where = torch.device("cpu")
    return timing.time_on_device(names, where, 1.0, after_reads=after_reads)


def test_rounds_are_queued_for_as_long_as_the_host_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device([5000.0, 80.0])  # the first round compiles
    samples = timed(device, monkeypatch)
    assert device.queued[:2] == [(1, 0.0), (1, 0.0)]
    assert all(planned >= 80.0 * 1.2 for _, planned in device.queued[2:])
    assert len(samples.rounds["0"]) == timing.MOST_ROUNDS


def test_a_slower_host_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of rounds in which the device waited for the host are thrown away."""
    device = Device([80.0, 80.0, 900.0, 100.0])
    samples = timed(device, monkeypatch)
    counts, planned = zip(*device.queued[2:4], strict=True)
    assert counts[0] == counts[1]
    assert planned[1] > 900.0
    assert 900.0 not in samples.rounds["0"]


def test_a_host_that_gets_slower_and_slower_gives_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device([3.0**n for n in range(400)])
    with pytest.raises(timing.HostTooSlow, match="longer each time"):
        timed(device, monkeypatch)


def test_a_batch_fits_into_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device([10.0])
    samples = timed(device, monkeypatch, calls=40)
    assert max(count for count, _ in device.queued) * 40 <= 100
    assert len(samples.rounds["0"]) == sum(count for count, _ in device.queued[2:])


def test_calls_of_many_launches_fit_into_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """74 launches of 10 us: a stream's queue holds thirteen such rounds."""
    device = Device([5000.0, 740.0])
    samples = timed(device, monkeypatch)
    assert max(count for count, _ in device.queued) * 74 <= 1000
    assert len(samples.rounds["0"]) == timing.MOST_ROUNDS


@pytest.mark.parametrize(("after_reads", "name"), [(False, "zero_"), (True, "sum")])
def test_what_empties_l2(monkeypatch: pytest.MonkeyPatch, after_reads: bool, name: str) -> None:
    device = Device([10.0])
    timed(device, monkeypatch, after_reads=after_reads)
    assert device.flushed == {name}
