"""Measuring a device: plausible, quick, and without a trace in the program."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fusepass.tune.device import measure_peaks
from fusepass.tune.device.measure_peaks import Peaks, measure
from fusepass.tune.device.peaks import SHIPPED

CPU = torch.device("cpu")
DEVICES = [CPU, pytest.param(torch.device("cuda", 0), marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_peaks, "_CPU_SIDE", 32)
    monkeypatch.setattr(measure_peaks, "_CPU_BYTES", 1 << 20)
    monkeypatch.setattr(measure_peaks, "_CPU_SECONDS", 0.0)


def state() -> dict[str, Any]:
    """What the program could see of a measurement."""
    cuda = torch.cuda.is_available()
    return {
        "random": torch.get_rng_state().tolist(),
        "random on the device": torch.cuda.get_rng_state().tolist() if cuda else None,
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "current": (torch.cuda.current_device(), torch.cuda.current_stream()) if cuda else None,
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "allocated": torch.cuda.memory_allocated() if cuda else None,
    }


@pytest.mark.parametrize("device", DEVICES)
def test_all_figures_are_positive_and_two_digits(device: torch.device) -> None:
    found = measure(device)
    for value in dataclasses.astuple(found):
        assert value > 0
        assert float(f"{value:.2g}") == value
    assert found.round_trip == found.read_back + measure_peaks.RESUME


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_of_the_program_changes(device: torch.device) -> None:
    measure(device)  # what is set up on first use is not the question
    before = state()
    measure(device)
    assert state() == before


@pytest.mark.parametrize(
    "scope",
    [
        torch.inference_mode(),
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
        torch.device("meta"),
        FakeTensorMode(),
    ],
    ids=["inference", "no grad", "autocast", "default device", "fake tensors"],
)
def test_it_computes_for_real_whatever_is_around_it(scope: Any) -> None:
    with scope:
        before = state()
        found = measure(CPU)
        assert state() == before
    assert found.flops32 < 1e16


def test_it_computes_for_real_inside_a_transform() -> None:
    found: list[Peaks] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        found.append(measure(CPU))
        return (x * 2).sum()

    torch.vmap(torch.func.grad(program))(torch.ones(2, 3))
    assert found


def test_the_default_dtype_does_not_matter() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        found = measure(CPU)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.flops32 > 0


def test_what_goes_wrong_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(torch.OutOfMemoryError):
        measure(CPU)


@pytest.mark.gpu
def test_the_device_is_measured_quickly_and_leaves_its_memory_alone() -> None:
    device = torch.device("cuda", 0)
    measure(device)
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    measure(device)
    assert time.perf_counter() - began < 0.3
    assert torch.cuda.memory_reserved() == reserved  # the same blocks serve again
    assert torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() < 300 << 20


@pytest.mark.gpu_alone
@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_name() not in SHIPPED,
    reason="needs a device whose figures are shipped",
)
def test_an_h200_is_what_it_should_be() -> None:
    found = measure(torch.device("cuda", 0))
    assert 3e12 < found.bandwidth < 5e12
    assert found.flops16 > 4e14
    assert 3e13 < found.flops32 < 1e14
    assert 5e-7 < found.launch < 1e-5
    assert (
        3e-6 < found.read_back < 1e-3
    )  # the host's part: two machines with an H200 differ tenfold
    shipped = SHIPPED[torch.cuda.get_device_name()]
    for name in ("flops16", "flops32", "bandwidth", "launch"):
        assert 0.5 < getattr(found, name) / getattr(shipped, name) < 2, name
