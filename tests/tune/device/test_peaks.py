"""Peaks that are measured once and kept; files that are damaged or cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fusepass.errors import PeaksUnusable
from fusepass.tune import decide
from fusepass.tune.device import peaks
from fusepass.tune.device.measure_peaks import Peaks
from fusepass.tune.device.peaks import CPU, UNKNOWN, parse, peaks_of

DEVICE = torch.device("cpu")
FOUND = Peaks(1e12, 2e11, bandwidth=3e10, launch=1e-6, read_back=2e-6)


class Meter:
    """Stands for measuring, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None

    def __call__(self, device: torch.device) -> Peaks:
        self.asked += 1
        time.sleep(0.01)
        if self.error is not None:
            raise self.error
        return FOUND


@pytest.fixture
def meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    meter = Meter()
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FUSEPASS_DEVICE_PEAKS", "measured")
    monkeypatch.setattr(peaks, "measure", meter)
    peaks.reset()
    yield meter
    peaks.reset()


def kept(folder: Path) -> Path:
    (path,) = folder.glob("peaks-*.json")
    return path


def test_measured_once_and_kept_for_the_next_process(meter: Meter, tmp_path: Path) -> None:
    assert peaks_of(DEVICE) == peaks_of(DEVICE) == FOUND
    peaks.reset()  # what the next process starts with
    assert peaks_of(DEVICE) == FOUND
    assert meter.asked == 1
    record = json.loads(kept(tmp_path).read_text())
    assert record["device"] == "cpu"
    assert record["peaks"]["highest"]["bandwidth"] == 3e10
    assert torch.__version__.split("+")[0] in kept(tmp_path).name


def test_float32_has_its_own_figures_where_it_may_be_less_exact(
    meter: Meter, tmp_path: Path
) -> None:
    peaks_of(DEVICE)
    torch.set_float32_matmul_precision("high")
    try:
        peaks_of(DEVICE)
        peaks_of(DEVICE)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert meter.asked == 2
    assert sorted(json.loads(kept(tmp_path).read_text())["peaks"]) == ["high", "highest"]


def test_the_cpu_is_measured_on_request_only(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in ("auto", "shipped"):
        monkeypatch.setenv("FUSEPASS_DEVICE_PEAKS", wanted)
        assert peaks_of(DEVICE) == CPU
    monkeypatch.delenv("FUSEPASS_DEVICE_PEAKS")
    assert peaks_of(DEVICE) == CPU
    assert meter.asked == 0


def test_a_device_that_cannot_be_asked_gets_careful_figures(meter: Meter) -> None:
    assert peaks_of(torch.device("meta")) == UNKNOWN
    if not torch.cuda.is_available():
        assert peaks_of(torch.device("cuda")) == UNKNOWN
        assert peaks.memory_of_device(torch.device("cuda")) == 0
    assert meter.asked == 0


def test_ranks_of_a_job_decide_alike(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as job:
        job.setattr(decide, "several_ranks", lambda: True)
        assert peaks_of(DEVICE) == CPU
    assert peaks_of(DEVICE) == FOUND  # the job left nothing behind


def test_nothing_is_measured_under_deterministic_algorithms(meter: Meter) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert peaks_of(DEVICE) == CPU
    finally:
        torch.use_deterministic_algorithms(False)
    assert meter.asked == 0


def test_a_failure_costs_one_warning_and_is_not_repeated(meter: Meter, tmp_path: Path) -> None:
    meter.error = torch.OutOfMemoryError("CUDA out of memory.\nTried to")
    with pytest.warns(PeaksUnusable, match="out of memory") as caught:
        assert peaks_of(DEVICE) == peaks_of(DEVICE) == CPU
    assert len(caught) == meter.asked == 1
    assert list(tmp_path.iterdir()) == []


DAMAGED = {
    "cut short": '{"schema": 1, "device": "cpu", "pea',
    "empty": "",
    "another shape": "[1, 2]",
    "another schema": json.dumps({"schema": 99, "device": "cpu", "peaks": {}}),
    "another device": json.dumps({"schema": 1, "device": "X", "peaks": {}}),
    "no figures": json.dumps({"schema": 1, "device": "cpu", "peaks": {"highest": 3}}),
    "a figure missing": json.dumps({"schema": 1, "device": "cpu", "peaks": {"highest": {}}}),
    "deep": "[" * 100_000,
    **{
        f"a figure that is {bad}": json.dumps(
            {
                "schema": 1,
                "device": "cpu",
                "peaks": {"highest": {**dict.fromkeys(vars(FOUND), 1.0), "launch": bad}},
            }
        )
        for bad in (0, -1.0, float("nan"), float("inf"), "1", None, True)
    },
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_set_aside_with_one_warning(
    meter: Meter, tmp_path: Path, text: str
) -> None:
    peaks_of(DEVICE)
    path = kept(tmp_path)
    path.write_text(text)
    peaks.reset()
    with pytest.warns(PeaksUnusable, match="damaged") as caught:
        assert peaks_of(DEVICE) == FOUND
    assert len(caught) == 1
    assert path.with_name(f"{path.name}.damaged").read_text() == text
    assert parse(path.read_text(), "cpu") == {"highest": FOUND}


def test_a_folder_that_cannot_be_made_costs_one_warning(
    meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(PeaksUnusable, match="cannot be written") as caught:
        assert peaks_of(DEVICE) == peaks_of(DEVICE) == FOUND
    assert len(caught) == meter.asked == 1


def test_threads_wait_for_one_measurement(meter: Meter) -> None:
    found: list[Peaks] = []
    threads = [threading.Thread(target=lambda: found.append(peaks_of(DEVICE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [FOUND] * 8
    assert meter.asked == 1


@pytest.mark.parametrize(("word", "hint"), [("mesured", "did you mean 'measured'"), ("9", "'9'")])
def test_a_word_that_means_nothing_is_the_default(
    word: str, hint: str, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks._warn_of_setting.cache_clear()
    monkeypatch.setenv("FUSEPASS_DEVICE_PEAKS", word)
    with pytest.warns(PeaksUnusable, match=hint) as caught:
        assert peaks_of(DEVICE) == peaks_of(DEVICE) == CPU
    assert len(caught) == 1


ONCE = """
import torch
from fusepass.tune.device import peaks
print(peaks.peaks_of(torch.device("cpu")))
"""


@pytest.mark.sampled(2)
def test_two_processes_agree(tmp_path: Path) -> None:
    environment = {
        "FUSEPASS_CACHE_DIR": str(tmp_path),
        "FUSEPASS_DEVICE_PEAKS": "measured",
        "OMP_NUM_THREADS": "1",
    }
    first, second = (
        subprocess.run(
            [sys.executable, "-c", ONCE],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    )
    assert first == second != f"{CPU}\n"


@pytest.mark.gpu
def test_a_device_whose_graph_is_being_captured_is_not_measured(meter: Meter) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        peaks_of(device)
    assert meter.asked == 0
    assert peaks_of(device) == FOUND
