"""Names of devices that measurements are kept under."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from fusepass.tune.device.names import cpu_name, device_name


def _told(monkeypatch: pytest.MonkeyPatch, text: str | OSError) -> None:
    def read_text(self: Path, *args: Any, **kwargs: Any) -> str:
        assert self == Path("/proc/cpuinfo")
        if isinstance(text, OSError):
            raise text
        return text

    monkeypatch.setattr(Path, "read_text", read_text)


def test_the_first_processor_says_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    first = "processor\t: 0\nvendor_id\t: A\nmodel\t\t: 1\nmodel name\t: A: 9 cores @ 3 GHz\n\n"
    _told(monkeypatch, first + "processor\t: 1\nmodel name\t: B\n")
    assert cpu_name() == "A: 9 cores @ 3 GHz"


@pytest.mark.parametrize("text", ["", "Hardware : some board\n", OSError("no such file")])
def test_where_no_model_is_told(monkeypatch: pytest.MonkeyPatch, text: Any) -> None:
    _told(monkeypatch, text)
    assert cpu_name() == (platform.processor() or platform.machine()) != ""


def test_a_cpu_is_named_with_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    _told(monkeypatch, "model name : A\n")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert device_name(torch.device("cpu")) == "A, 3 cores"


def test_a_cuda_device_is_named_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda one: asked.append(one) or "H200")
    assert device_name(torch.device("cuda", 1)) == "H200"
    assert asked == [torch.device("cuda", 1)]
