"""Names under which what was measured on a device is kept."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """A CUDA device's name as torch gives it; the CPU's model and number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {os.cpu_count()} cores"


def cpu_name() -> str:
    """The processor's model name, or its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
